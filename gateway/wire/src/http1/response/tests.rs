use proptest::prelude::*;

use super::ResponseHead;
use crate::http1::{Framing, Http1Error, Limits};

fn parse(text: &str, to_head: bool) -> Result<ResponseHead, Http1Error> {
    let mut head = ResponseHead::default();
    let len = head.parse(text.as_bytes(), to_head, Limits::default())?;
    assert_eq!(len, Some(text.len()), "{text:?}");
    Ok(head)
}

fn framed(text: &str) -> (Framing, bool) {
    let head = parse(text, false).unwrap();
    (head.framing(), head.keeps_alive())
}

const ENDS: &[(&str, Framing, bool)] = &[
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        Framing::Length(3),
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        Framing::Length(0),
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
        Framing::Chunked,
        true,
    ),
    ("HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false),
    ("HTTP/1.1 200\r\n\r\n", Framing::UntilClose, false),
    (
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\n",
        Framing::Length(3),
        false,
    ),
    (
        "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n",
        Framing::Length(3),
        false,
    ),
    (
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\n",
        Framing::Length(3),
        true,
    ),
    (
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n",
        Framing::UntilClose,
        false,
    ),
    ("HTTP/1.1 204 No Content\r\n\r\n", Framing::None, true),
    (
        "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        Framing::None,
        true,
    ),
    (
        "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
        Framing::None,
        false,
    ),
    (
        "HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n",
        Framing::None,
        false,
    ),
    (
        "HTTP/1.1 304 X\r\nContent-Length: 3\r\n\r\n",
        Framing::None,
        false,
    ),
    ("HTTP/1.1 304 X\r\n\r\n", Framing::None, true),
    ("HTTP/1.1 100 Continue\r\n\r\n", Framing::None, true),
    (
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
        Framing::None,
        true,
    ),
    (
        "HTTP/1.1 999 \r\nContent-Length: 1\r\n\r\n",
        Framing::Length(1),
        true,
    ),
];

#[test]
fn the_framing_of_a_response_is_unambiguous() {
    for &(text, framing, keeps) in ENDS {
        assert_eq!(framed(text), (framing, keeps), "{text:?}");
    }
    let head = parse("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true).unwrap();
    assert_eq!(head.framing(), Framing::None);
    assert_eq!(head.announced(), Some(3));
    assert!(head.keeps_alive());
}

const BAD_HEADS: &[(&str, Http1Error)] = &[
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        Http1Error::LengthAndCoding,
    ),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        Http1Error::LengthRepeated,
    ),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\n",
        Http1Error::LengthInvalid,
    ),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        Http1Error::LengthInvalid,
    ),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        Http1Error::CodingUnsupported,
    ),
    (
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        Http1Error::CodingVersion,
    ),
    (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        Http1Error::Switched,
    ),
    ("HTTP/1.1 200 OK\n\n", Http1Error::LineEnd),
    ("HTTP/1.1 200 OK\n\r\n", Http1Error::LineEnd),
    ("HTTP/1.1 200\n\r\n", Http1Error::LineEnd),
    ("HTTP/1.1 200 OK\r\nX: y\n\r\n", Http1Error::LineEnd),
    (
        "HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n",
        Http1Error::FieldName,
    ),
    ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", Http1Error::FieldName),
    (
        "HTTP/1.1 200 OK\r\nX: \u{1}\r\n\r\n",
        Http1Error::FieldValue,
    ),
    ("HTTP/1.1 200 O\rK\r\n\r\n", Http1Error::StatusLine),
    ("HTTP/1.1 20 OK\r\n\r\n", Http1Error::StatusLine),
    ("HTTP/1.1 2000 OK\r\n\r\n", Http1Error::StatusLine),
    ("HTTP/1.1 099 OK\r\n\r\n", Http1Error::StatusLine),
    ("HTTP/1.1  200 OK\r\n\r\n", Http1Error::StatusLine),
    ("HTTP/2.0 200 OK\r\n\r\n", Http1Error::Version),
    ("ICY 200 OK\r\n\r\n", Http1Error::Version),
    ("\r\nHTTP/1.1 200 OK\r\n\r\n", Http1Error::StatusLine),
    ("\nHTTP/1.1 200 OK\r\n\r\n", Http1Error::StatusLine),
];

#[test]
fn desynchronizing_responses_are_rejected() {
    for &(text, reason) in BAD_HEADS {
        assert_eq!(parse(text, false).err(), Some(reason), "{text:?}");
    }
    let many = "x: y\r\n".repeat(101);
    let text = format!("HTTP/1.1 200 OK\r\n{many}\r\n");
    assert_eq!(parse(&text, false).err(), Some(Http1Error::TooManyFields));
    let text = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(70_000));
    assert_eq!(parse(&text, false).err(), Some(Http1Error::HeadTooLong));
}

#[test]
fn reason_and_fields_are_parsed() {
    let text = "HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nretry-after: 2\r\n\
        Connection: x-a\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n";
    let head = parse(text, false).unwrap();
    let response = head.on(text.as_bytes());
    assert_eq!(
        (head.status(), response.reason()),
        (429, b"Too Many".as_slice())
    );
    let waits: Vec<_> = response.fields().all("Retry-After").collect();
    assert_eq!(waits, [b"1", b"2"]);
    assert_eq!(response.fields().end_to_end().count(), 2);
    let odd = "HTTP/1.1 200 \u{e9}\r\n\r\n";
    assert_eq!(parse(odd, false).unwrap().on(odd.as_bytes()).reason(), b"");
}

proptest! {
    #[test]
    fn read_boundaries_do_not_matter(
        status in 90_u16..600,
        lines in proptest::collection::vec(prop_oneof![
            Just("Content-Length: 1\r\n".to_owned()),
            Just("Transfer-Encoding: chunked\r\n".to_owned()),
            Just("X:\n".to_owned()),
            "[A-Za-z]{1,5}:[ -~]{0,20}\r\n",
        ], 0..5),
        to_head: bool,
    ) {
        let text = format!("HTTP/1.1 {status:03} R\r\n{}\r\nrest", lines.concat());
        let text = text.as_bytes();
        let mut whole = ResponseHead::default();
        let expected = whole.parse(text, to_head, Limits::default());
        let mut head = ResponseHead::default();
        let result = (1..=text.len())
            .map(|len| head.parse(&text[..len], to_head, Limits::default()))
            .find(|result| *result != Ok(None));
        prop_assert_eq!(result, Some(expected));
        if expected.is_ok() {
            prop_assert_eq!(head.framing(), whole.framing());
            prop_assert_eq!(head.keeps_alive(), whole.keeps_alive());
            prop_assert_eq!(head.on(text).fields().len(), lines.len());
        }
    }
}
