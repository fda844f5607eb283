//! The result for a form does not depend on read boundaries; another parser
//! finds the same model and no other; and the spliced form has the expected
//! model.

#![no_main]

use std::convert::Infallible;

use bytes::Bytes;
use fastllm_wire::{FormReader, Members, ScanError, Splice};
use futures_util::FutureExt;
use libfuzzer_sys::fuzz_target;

const TYPE: &[u8] = b"multipart/form-data; boundary=x";

fn read<'a>(
    content_type: &[u8],
    reads: impl Iterator<Item = &'a [u8]>,
) -> Result<Members, ScanError> {
    let mut form = FormReader::new(content_type)?;
    for read in reads {
        form.push(read)?;
    }
    form.finish()
}

/// The models that another parser finds.
async fn models(body: &[u8]) -> Result<Vec<Vec<u8>>, multer::Error> {
    let read = std::future::ready(Ok::<_, Infallible>(Bytes::copy_from_slice(body)));
    let mut form = multer::Multipart::new(futures_util::stream::once(read), "x");
    let mut models = Vec::new();
    while let Some(field) = form.next_field().await? {
        let is_model = field
            .name()
            .is_some_and(|name| name.eq_ignore_ascii_case("model"));
        let value = field.bytes().await?;
        if is_model {
            models.push(value.to_vec());
        }
    }
    Ok(models)
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (cut, own_type, bytes) = input;
    let (content_type, body) = if own_type {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        bytes.split_at(end.unwrap_or(bytes.len()))
    } else {
        (TYPE, bytes)
    };
    let whole = read(content_type, std::iter::once(body));
    let parts = read(content_type, body.chunks(usize::from(cut).max(1)));
    assert_eq!(whole, parts);
    let Ok(members) = whole else {
        return;
    };
    assert_eq!(&body[members.model_at()], members.model().as_bytes());
    if !own_type {
        let found = models(body).now_or_never().expect("nothing to wait for");
        // A parser that rejects the form serves no other model.
        if let Ok(found) = found {
            assert_eq!(found, [members.model().as_bytes()]);
        }
    }
    let splice = Splice::new(&members).model("engine").include_usage();
    let out = splice.to_vec(body);
    assert_eq!(splice.len(body.len()), out.len());
    let form_type = members.form_type().expect("a form");
    let again = read(form_type.as_bytes(), std::iter::once(&out[..])).expect("still a form");
    assert_eq!((again.model(), again.is_stream()), ("engine", members.is_stream()));
    let back = Splice::new(&again).model(members.model()).to_vec(&out);
    assert_eq!(back, body);
});
