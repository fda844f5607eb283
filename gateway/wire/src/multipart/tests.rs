use proptest::prelude::*;

use super::*;
use crate::Splice;
use crate::tests::cut;

const TYPE: &[u8] = b"multipart/form-data; boundary=frontier";

/// A form of parts that are already written, including their heads.
fn form(parts: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(b"--frontier\r\n");
        body.extend_from_slice(part);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--frontier--\r\n");
    body
}

fn text(name: &str, value: &str) -> Vec<u8> {
    format!("Content-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}").into_bytes()
}

fn file(content: &[u8]) -> Vec<u8> {
    let head = "Content-Disposition: form-data; name=\"file\"; filename=\"a \\ é; name=model.wav\"\r\n\
        Content-Type: audio/x-wav\r\n\r\n";
    [head.as_bytes(), content].concat()
}

/// The result for a form whose part has this head and the value `m`.
fn headed(head: &str) -> Result<Members, ScanError> {
    read(&form(&[format!("{head}\r\n\r\nm").as_bytes()]))
}

fn read_in(reads: &[Vec<u8>]) -> Result<Members, ScanError> {
    let mut reader = FormReader::new(TYPE).unwrap();
    for read in reads {
        reader.push(read)?;
    }
    reader.finish()
}

fn read(body: &[u8]) -> Result<Members, ScanError> {
    let whole = read_in(&[body.to_vec()]);
    let bytes: Vec<_> = body.chunks(1).map(<[u8]>::to_vec).collect();
    assert_eq!(read_in(&bytes), whole);
    whole
}

fn why(body: &[u8]) -> &'static str {
    match read(body).unwrap_err() {
        ScanError::MalformedForm { at, why } => {
            assert!(at <= body.len());
            why
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_model_is_found_before_and_after_the_file() {
    let upload = file(b"RIFF\r\n--front\r\n\n-- frontier--\x00\xFF");
    let [model, prompt] = [text("model", "whisper"), text("prompt", "--frontier")];
    for parts in [
        [&model, &upload, &prompt],
        [&upload, &prompt, &model],
        [&prompt, &model, &upload],
    ] {
        // The value of a part may contain a delimiter that is not at the
        // beginning of a line.
        let prompt_first = parts.map(|part| {
            if part == &prompt {
                text("prompt", "x--frontier")
            } else {
                part.clone()
            }
        });
        let body = form(&prompt_first.each_ref().map(Vec::as_slice));
        let members = read(&body).unwrap();
        assert_eq!(members.model(), "whisper");
        assert_eq!(&body[members.model_at()], b"whisper");
        assert!(!members.is_stream() && !members.can_request_usage());
        assert_eq!(members.ceiling(), None);
        assert_eq!(members.form_type().map(str::as_bytes), Some(TYPE));
        let out = Splice::new(&members).model("große-v3").to_vec(&body);
        let again = read(&out).unwrap();
        assert_eq!(again.model(), "große-v3");
        assert_eq!(Splice::new(&again).model("whisper").to_vec(&out), body);
    }
}

#[test]
fn the_number_of_images_is_known_once_its_part_is_complete() {
    let [model, n] = [text("model", "m"), text("n", "4")];
    for parts in [[&model, &n], [&n, &model]] {
        let members = read(&form(&parts.map(Vec::as_slice))).unwrap();
        assert_eq!(members.choices(), 4);
    }
    let members = read(&form(&[&n, &model, &file(b"RIFF")])).unwrap();
    assert_eq!((members.choices(), members.file_bytes()), (4, Some(4)));
    for (value, expected) in [("", 1), ("two", 1), ("-1", 1), ("2.0", 2), ("1e9", 1 << 14)] {
        let members = read(&form(&[&model, &text("n", value)])).unwrap();
        assert_eq!(members.choices(), expected, "{value}");
    }
    let twice = read(&form(&[&n, &model, &n]));
    assert_eq!(twice, Err(ScanError::Duplicate { member: "n" }));
}

#[test]
fn the_model_is_known_before_the_form_is_complete() {
    let body = form(&[&text("model", "m"), &text("stream", "true"), &file(b"x")]);
    let mut reader = FormReader::new(TYPE).unwrap();
    let known = body
        .windows(10)
        .rposition(|at| at == b"--frontier")
        .unwrap();
    let after_model = 2 * b"--frontier\r\n".len() + text("model", "m").len();
    reader.push(&body[..after_model - 1]).unwrap();
    assert_eq!(reader.members(), None);
    reader.push(&body[after_model - 1..=after_model]).unwrap();
    assert!(!reader.members().unwrap().is_stream());
    reader.push(&body[after_model + 1..known]).unwrap();
    assert!(reader.members().unwrap().is_stream());
    reader.push(&body[known..]).unwrap();
    assert!(reader.finish().unwrap().is_stream());
}

#[test]
fn the_bytes_of_files_are_counted() {
    let model = text("model", "m");
    let bytes = |parts: &[&[u8]]| read(&form(parts)).unwrap().file_bytes();
    let (first, second) = (file(b"RIFF\r\n--front"), file(b""));
    assert_eq!(bytes(&[&model, &first]), Some(13));
    assert_eq!(bytes(&[&first, &model, &second, &first]), Some(26));
    assert_eq!(bytes(&[&second, &model]), Some(0));
    assert_eq!(bytes(&[&model, &text("prompt", "hello")]), None);
}

#[test]
fn flags_are_parsed_as_in_engines() {
    for (value, expected) in [
        ("true", true),
        ("True", true),
        ("1", true),
        ("false", false),
        ("x", false),
    ] {
        for parts in [
            [text("stream", value), text("model", "m")],
            [text("model", "m"), text("stream", value)],
        ] {
            let body = form(&parts.each_ref().map(Vec::as_slice));
            assert_eq!(read(&body).unwrap().is_stream(), expected, "{value}");
        }
    }
}

#[test]
fn a_second_model_is_rejected_at_any_position() {
    let model = text("model", "m");
    for parts in [
        vec![model.as_slice(), &model],
        vec![&model, &file(b"x"), &text("model", "n")],
    ] {
        let body = form(&parts);
        assert_eq!(read(&body), Err(ScanError::Duplicate { member: "model" }));
    }
    let stream = text("stream", "true");
    let body = form(&[&stream, &model, &stream]);
    assert_eq!(read(&body), Err(ScanError::Duplicate { member: "stream" }));
}

#[test]
fn an_error_is_permanent() {
    let mut reader = FormReader::new(TYPE).unwrap();
    let error = reader.push(b"x").unwrap_err();
    assert_eq!(reader.push(&form(&[&text("model", "m")])), Err(error));
    assert_eq!(reader.finish(), Err(error));
}

#[test]
fn the_model_must_be_a_valid_name() {
    assert_eq!(
        read(&form(&[&file(b"x")])),
        Err(ScanError::Missing { member: "model" })
    );
    assert_eq!(
        read(&form(&[&text("model", "")])),
        Err(ScanError::Empty { member: "model" })
    );
    let invalid = [text("model", "").as_slice(), b"\xFF"].concat();
    assert_eq!(
        read(&form(&[&invalid])).unwrap_err().member(),
        Some("model")
    );
    let longest = "m".repeat(MODEL_LIMIT);
    assert_eq!(
        read(&form(&[&text("model", &longest)])).unwrap().model(),
        longest
    );
    let too_long = ScanError::TooLong {
        member: "model",
        limit: MODEL_LIMIT,
    };
    for len in [MODEL_LIMIT + 1, MODEL_LIMIT + 20, 100_000] {
        let body = form(&[&text("model", &"m".repeat(len))]);
        assert_eq!(read(&body), Err(too_long));
    }
    assert_eq!(too_long.code(), "invalid_value");
}

#[test]
fn names_are_parsed_in_any_quoting() {
    for head in [
        "Content-Disposition: form-data; name=model",
        "CONTENT-DISPOSITION:Form-Data;name=\"model\"",
        "X-Other: \"; name=x\r\nContent-Disposition: form-data ;  name=\"model\" ;",
        "Content-Disposition: form-data; name=\"model\"\r\nContent-Length: 1\r\nContent-Transfer-Encoding: binary\
         \r\nContent-Type: text/plain; charset=\"UTF-8\"",
    ] {
        assert_eq!(headed(head).unwrap().model(), "m", "{head}");
    }
}

#[test]
fn ambiguous_forms_are_rejected() {
    for head in [
        "Content-Disposition: form-data; naMe=\"model\"",
        "Content-Disposition: form-data; name*=utf-8''model",
        "Content-Disposition: form-data; name=\"x\"; name*0=\"model\"",
        "Content-Disposition: form-data; name=\"x\"; name=\"model\"",
        "Content-Disposition: form-data; name=\"mod%65l\"",
        "Content-Disposition: form-data; name=\"mod\\el\"",
        "Content-Disposition: form-data; name=\"=?utf-8?q?model?=\"",
        "Content-Disposition: form-data; name=\" model\"",
        "Content-Disposition: form-data; name=\"mod\u{e9}l\"",
        "Content-Disposition: form-data; name=\"\"",
        "Content-Disposition: form-data; name='model'",
        "Content-Disposition: form-data; name=<model>",
        "Content-Disposition: form-data; name =\"model\"",
        "Content-Disposition: form-data; name=\"model",
        "Content-Disposition: form-data; name=\"model\" x",
        "Content-Disposition: form-data; name=model\t;",
        "Content-Disposition: form-data; names=x; name=\"model\"",
        "Content-Disposition: form-data; name=\"model\"; size=1",
        "Content-Disposition: form-data; name=x ; a=b",
        "Content-Disposition: form-data; filename=\"\\\"; name=\"model\"",
        "Content-Disposition: form-data; x=\"a\\\"; name=model; y=\"b\"; name=\"z\"",
        "Content-Disposition: form-data;\r\n name=\"model\"",
        "Content-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"",
        "Content-Disposition: attachment; name=\"model\"",
        "Content-Disposition : form-data; name=\"model\"",
        "Content-Disposition: form-data; name=\"x\"\nA: b",
        "Content-Disposition: form-data; name=\"x\0\"",
        "Content-Disposition: form-data",
        "Content-Disposition: form-data; name=\"x\"\r\n--frontier: form-data",
        "Content-Type: text/plain",
        "name=\"model\"",
        "",
        "Content-Disposition: form-data; name=\"_Charset_\"",
    ] {
        let error = headed(head).unwrap_err();
        assert!(
            matches!(error, ScanError::MalformedForm { .. }),
            "{head}: {error:?}"
        );
        assert_eq!((error.code(), error.member()), ("invalid_form_data", None));
    }
}

#[test]
fn the_model_must_be_one_plain_text_field() {
    for head in [
        "Content-Disposition: form-data; name=\"Model\"",
        "Content-Disposition: form-data; name=\"model[]\"",
        "Content-Disposition: form-data; name=\"MODEL[0]\"",
        "Content-Disposition: form-data; name=\"model\"; filename=\"\"",
        "Content-Disposition: form-data; name=\"model\"; FileName*=utf-8''a",
        "Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: quoted-printable",
        "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: application/json",
        "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; charset=utf-16",
    ] {
        assert_eq!(headed(head).unwrap_err().member(), Some("model"), "{head}");
    }
    let error = headed("Content-Disposition: form-data; name=\"Stream\"").unwrap_err();
    assert_eq!(error, ScanError::CaseVariant { member: "stream" });
}

#[test]
fn a_delimiter_with_surrounding_bytes_is_rejected() {
    let body = |pattern: &str| {
        let model = "content-disposition: form-data; name=model\r\n\r\n";
        pattern.replace('#', model).replace('@', "--frontier")
    };
    let begins = "the form must begin with its boundary";
    let followed = "unexpected bytes after a boundary";
    let follows = "a boundary must follow a CRLF";
    let incomplete = "the form is incomplete";
    for (pattern, expected) in [
        ("\r\n@\r\n#m\r\n@--", begins),
        ("preamble\r\n@\r\n#m\r\n@--", begins),
        ("@\n#m\r\n@--", followed),
        ("@ \r\n#m\r\n@--", followed),
        ("@\r\n#m\r\n@2\r\n", followed),
        ("@\r\n#m\r\n@-\r\n", followed),
        ("@\r\n#m\n@--", follows),
        ("@\r\n#m\r@--", follows),
        ("@\r\n#m\r\r@--", follows),
        ("@\r\n#@--", follows),
        ("@\r\n#m\r\n@--\r\n@\r\n", "data after the last delimiter"),
        ("@\r\n#m\r\n@", incomplete),
        ("@\r\n#m\r\n", incomplete),
        ("@\r\ncontent", incomplete),
        ("--front", incomplete),
        ("", incomplete),
    ] {
        assert_eq!(why(body(pattern).as_bytes()), expected, "{pattern:?}");
    }
    for end in ["", "\r\n", "\r\n\r\n"] {
        let body = body(&format!("@\r\n#m\r\n@--{end}"));
        assert!(read(body.as_bytes()).is_ok());
    }
    assert_eq!(
        read(b"--frontier--"),
        Err(ScanError::Missing { member: "model" })
    );
}

#[test]
fn heads_and_parts_are_bounded() {
    let padded = |len: usize| {
        let head = "content-disposition: form-data; name=model\r\nx:";
        let end = "\r\n\r\n";
        format!("{head}{}{end}m", "y".repeat(len - head.len() - end.len()))
    };
    assert!(read(&form(&[padded(HEAD_LIMIT).as_bytes()])).is_ok());
    assert_eq!(
        why(&form(&[padded(HEAD_LIMIT + 1).as_bytes()])),
        "the head of a part is too long"
    );

    let [model, other] = [text("model", "m"), text("x", "1")];
    let mut parts = vec![other.as_slice(); PART_LIMIT - 1];
    parts.push(&model);
    assert!(read(&form(&parts)).is_ok());
    parts.push(&other);
    assert_eq!(why(&form(&parts)), "too many parts");
}

#[test]
fn a_content_type_requires_one_unambiguous_boundary() {
    let longest = "b".repeat(70);
    for (given, written) in [
        (
            "multipart/form-data; boundary=x",
            "multipart/form-data; boundary=x",
        ),
        (
            "Multipart/Form-Data;BOUNDARY=\"x\"",
            "multipart/form-data; boundary=x",
        ),
        (
            "multipart/form-data; charset=utf-7; boundary=\"----=_Part/1\"; a=b",
            "multipart/form-data; boundary=\"----=_Part/1\"",
        ),
        (
            &format!("multipart/form-data; boundary={longest}"),
            &format!("multipart/form-data; boundary={longest}"),
        ),
    ] {
        let reader = FormReader::new(given.as_bytes()).unwrap();
        assert_eq!(reader.content_type, written, "{given}");
        let again = FormReader::new(written.as_bytes()).unwrap();
        assert_eq!(again.delimiters.needle(), reader.delimiters.needle());
    }
    for given in [
        "",
        "application/json",
        "multipart/mixed; boundary=x",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"\"",
        "multipart/form-data; boundary=x; boundary=x",
        "multipart/form-data; boundary*=utf-8''x",
        "multipart/form-data; boundary=x; boundary*0=y",
        "multipart/form-data; boundary=\"a b\"",
        "multipart/form-data; boundary=\"a\\b\"",
        "multipart/form-data; boundary=a/b",
        "multipart/form-data; boundary=x, multipart/form-data; boundary=y",
        "multipart/form-data boundary=x",
        &format!("multipart/form-data; boundary={longest}b"),
    ] {
        assert_eq!(
            FormReader::new(given.as_bytes()).unwrap_err(),
            ScanError::NotAForm,
            "{given}"
        );
    }
}

proptest! {
    /// Read boundaries do not change the result, and the result is what was
    /// written, whatever the parts contain.
    #[test]
    fn read_boundaries_do_not_matter(
        before in proptest::collection::vec(content(), 0..4),
        model in "[a-zA-Z0-9/._é\r\n-]{1,40}",
        after in proptest::collection::vec(content(), 0..4),
        positions in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut parts: Vec<_> = before.iter().map(|content| file(content)).collect();
        parts.push(text("model", &model));
        parts.extend(after.iter().map(|content| file(content)));
        let body = form(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let whole = read(&body);
        prop_assert_eq!(&read_in(&cut(&body, &positions)), &whole);
        let holds_delimiter = before.iter().chain(&after).any(|content| {
            content.starts_with(b"--frontier")
                || [b"\r--frontier", b"\n--frontier"].iter().any(|line| content.windows(11).any(|at| at == *line))
        });
        prop_assert_eq!(whole.is_err(), holds_delimiter);
        if let Ok(members) = whole {
            prop_assert_eq!(members.model(), model.as_str());
            prop_assert_eq!(&body[members.model_at()], model.as_bytes());
        }
    }

    #[test]
    fn accepts_arbitrary_input(
        body in proptest::collection::vec(prop::sample::select(b"-\r\nfrontier:;=\"x".to_vec()), 0..200),
        positions in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let body = [b"--frontier\r\n".as_slice(), &body].concat();
        prop_assert_eq!(read_in(&cut(&body, &positions)), read(&body));
    }
}

/// The content of a part: mostly fragments of delimiters.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(
        [
            b"\r\n".as_slice(),
            b"\r",
            b"\n",
            b"--",
            b"-",
            b"front",
            b"ier",
            b"--frontier",
            b"a",
            b"\xFF\x00",
        ]
        .to_vec(),
    );
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}
