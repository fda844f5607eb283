//! Estimates the usage of a request before it is sent.

use fastllm_engine::pricing::Quantities;
use fastllm_wire::{Measure, Members};

use crate::http::{Head, ProxiedEndpoint};

/// Bytes per millisecond of audio: 64 kbit/s, a common rate. Speech in
/// PCM has four times as many, in Opus half as many or fewer.
const BYTES_PER_MS: u64 = 8;

/// A request body, as far as it has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestBody<'a> {
    pub(crate) members: &'a Members,
    pub(crate) bytes: &'a [u8],
}

/// What the request is expected to use besides tokens: the images that it
/// requests, the characters of the text to synthesize, and, roughly, the audio
/// that it sends, by its content length or else by what has arrived.
pub(crate) fn estimated_quantities(
    endpoint: ProxiedEndpoint,
    head: &Head,
    body: RequestBody<'_>,
) -> Quantities {
    let mut quantities = Quantities::default();
    match endpoint.measure() {
        Measure::Tokens => {}
        Measure::Images => quantities.images = body.members.choices(),
        Measure::AudioOutput => {
            quantities.input_characters = body.members.input_characters().unwrap_or(0);
        }
        Measure::AudioInput => {
            let arrived = body.bytes.len() as u64;
            quantities.audio_ms = length(head).unwrap_or(arrived) / BYTES_PER_MS;
        }
    }
    quantities
}

/// The length of the body, if the head contains it.
fn length(head: &Head) -> Option<u64> {
    let digits = head.field("content-length")?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use fastllm_engine::pricing::Quantities;
    use fastllm_wire::{FormReader, scan};

    use super::{RequestBody, estimated_quantities};
    use crate::http::{BodyKind, Head, ProxiedEndpoint};

    fn of(proxied: ProxiedEndpoint, head: &str, body: &str) -> (u64, Quantities) {
        let bytes = body.as_bytes();
        let members = match proxied.body() {
            BodyKind::Json(fields) => scan(bytes, fields).unwrap(),
            BodyKind::Form => {
                let mut form = FormReader::new(b"multipart/form-data; boundary=x").unwrap();
                form.push(bytes).unwrap();
                form.members().unwrap().clone()
            }
        };
        let body = RequestBody {
            members: &members,
            bytes,
        };
        let quantities = estimated_quantities(proxied, &Head::with(head), body);
        (members.prompt_tokens(), quantities)
    }

    fn part(name: &str, value: &str) -> String {
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    #[test]
    fn images_and_characters_are_counted() {
        let body = r#"{"model":"m","n":3,"input":"gr\u00fc\u00dfe","prompt":"a"}"#;
        let none = Quantities::default();
        let images = Quantities { images: 3, ..none };
        let characters = Quantities {
            input_characters: 5,
            ..none
        };
        let prompt = body.len() as u64 * 2 / 7;
        for (proxied, expected) in [
            (ProxiedEndpoint::ImageGenerations, images),
            (ProxiedEndpoint::Speech, characters),
            (ProxiedEndpoint::ChatCompletions, none),
            (ProxiedEndpoint::Completions, none),
            (ProxiedEndpoint::Responses, none),
            (ProxiedEndpoint::Embeddings, none),
        ] {
            assert_eq!(of(proxied, "", body), (prompt, expected), "{proxied:?}");
        }
        let alone = of(ProxiedEndpoint::ImageGenerations, "", r#"{"model":"m"}"#);
        assert_eq!(alone.1.images, 1);
        let form = [part("n", "2"), part("model", "m"), part("prompt", "a")].concat();
        assert_eq!(
            of(ProxiedEndpoint::ImageEdits, "", &form),
            (0, Quantities { images: 2, ..none })
        );
    }

    #[test]
    fn audio_duration_is_estimated_from_its_bytes() {
        let form = [part("model", "m"), "--x--\r\n".to_owned()].concat();
        let ms = |head: &str| of(ProxiedEndpoint::Transcriptions, head, &form).1.audio_ms;
        assert_eq!(ms("content-length: 480000\r\n"), 60_000);
        assert_eq!(ms(""), form.len() as u64 / 8);
    }
}
