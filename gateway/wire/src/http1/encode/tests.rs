use std::num::NonZeroUsize;

use proptest::prelude::*;

use super::{ChunkLine, HeadWriter};
use crate::http1::{Framing, Http1Error, Limits, Persistence, RequestHead, ResponseHead};

#[test]
fn a_request_is_appended() {
    let mut out = b"before".to_vec();
    let mut head = HeadWriter::request(&mut out, b"POST", b"/v1/chat/completions");
    head.field(b"host", b"engine:8000")
        .field(b"accept-encoding", b"identity")
        .field(b"x-request-id", b"1");
    head.end(Framing::Length(1024), Persistence::Keep).unwrap();
    assert_eq!(
        out,
        b"beforePOST /v1/chat/completions HTTP/1.1\r\nhost: engine:8000\r\n\
          accept-encoding: identity\r\nx-request-id: 1\r\ncontent-length: 1024\r\n\r\n"
    );
}

#[test]
fn a_response_declares_its_framing() {
    let written = |status, framing, persistence| {
        let mut out = Vec::new();
        let head = HeadWriter::response(&mut out, status);
        head.end(framing, persistence).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        written(200, Framing::Length(u64::MAX), Persistence::Keep),
        "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n"
    );
    assert_eq!(
        written(599, Framing::Chunked, Persistence::Close),
        "HTTP/1.1 599 \r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    );
    assert_eq!(
        written(204, Framing::None, Persistence::KeepSaid),
        "HTTP/1.1 204 No Content\r\nconnection: keep-alive\r\n\r\n"
    );
    let mut out = Vec::new();
    let mut head = HeadWriter::response(&mut out, 200);
    head.announce(7);
    head.end(Framing::None, Persistence::Keep).unwrap();
    assert_eq!(out, b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n");
}

#[test]
fn an_invalid_head_is_removed_from_the_buffer() {
    for (name, value) in [
        ("x", "a\r\nEvil: 1"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("", "a"),
        ("x y", "a"),
        ("x:", "a"),
        ("x\r\ny", "a"),
        ("\u{e9}", "a"),
        ("Content-Length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("connection", "close"),
        ("upgrade", "h2c"),
    ] {
        let mut out = b"kept".to_vec();
        let mut head = HeadWriter::response(&mut out, 200);
        head.field(name.as_bytes(), value.as_bytes())
            .field(b"y", b"z");
        let ended = head.end(Framing::Length(0), Persistence::Keep);
        assert_eq!(ended, Err(Http1Error::Unwritable), "{name:?}: {value:?}");
        assert_eq!(out, b"kept");
    }
    for (method, target) in [
        ("", "/"),
        ("GET", ""),
        ("GE T", "/"),
        ("GET", "/ HTTP/1.1\r\nx: y"),
        ("GET", "/a b"),
        ("GET\r\n", "/"),
    ] {
        let mut out = Vec::new();
        let head = HeadWriter::request(&mut out, method.as_bytes(), target.as_bytes());
        assert!(head.end(Framing::None, Persistence::Keep).is_err());
        assert!(out.is_empty());
    }
    let mut out = b"kept".to_vec();
    assert!(
        HeadWriter::response(&mut out, 99)
            .end(Framing::None, Persistence::Keep)
            .is_err()
    );
    drop(HeadWriter::response(&mut out, 200));
    assert_eq!(out, b"kept");
}

#[test]
fn conflicting_framing_is_rejected() {
    let ends = |times, framing, persistence| {
        let mut out = Vec::new();
        let mut head = HeadWriter::response(&mut out, 200);
        for _ in 0..times {
            head.announce(1);
        }
        let ended = head.end(framing, persistence).is_ok();
        assert_eq!(out.is_empty(), !ended);
        ended
    };
    assert!(ends(1, Framing::None, Persistence::Keep));
    assert!(!ends(2, Framing::None, Persistence::Keep));
    assert!(!ends(1, Framing::Length(1), Persistence::Keep));
    assert!(!ends(1, Framing::Chunked, Persistence::Keep));
    assert!(!ends(0, Framing::UntilClose, Persistence::Keep));
    assert!(ends(0, Framing::UntilClose, Persistence::Close));
}

#[test]
fn a_chunk_line_is_the_length_in_hexadecimal() {
    for len in [1, 9, 10, 15, 16, 255, 256, 65_535, 1 << 20, usize::MAX] {
        let line = ChunkLine::new(NonZeroUsize::new(len).unwrap());
        assert_eq!(line.as_bytes(), format!("{len:x}\r\n").as_bytes());
    }
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = "x-[a-zA-Z0-9!#$%&'*+.^_`|~-]{0,12}";
    let value = "([!-~\u{e9}]([!-~ \t]{0,20}[!-~])?)?";
    proptest::collection::vec((name, value), 0..12)
}

proptest! {
    #[test]
    fn a_written_head_is_read_back(
        method in "[A-Z]{1,8}",
        path in "/[a-z0-9/._~-]{0,30}(\\?[a-z=&%]{0,9})?",
        sent in fields(),
        length in proptest::option::of(0..=i64::MAX.unsigned_abs()),
        status in 200_u16..1000,
    ) {
        prop_assume!(method != "CONNECT");
        let framing = length.map_or(Framing::Chunked, Framing::Length);
        let mut out = Vec::new();
        let mut head = HeadWriter::request(&mut out, method.as_bytes(), path.as_bytes());
        head.field(b"host", b"h");
        for (name, value) in &sent {
            head.field(name.as_bytes(), value.as_bytes());
        }
        head.end(framing, Persistence::Close).unwrap();
        let mut read = RequestHead::default();
        prop_assert_eq!(read.parse(&out, Limits::default()), Ok(Some(out.len())));
        prop_assert_eq!(read.on(&out).method(), method.as_bytes());
        prop_assert_eq!(read.on(&out).target(), path.as_bytes());
        prop_assert_eq!(read.framing(), framing);
        prop_assert!(!read.keeps_alive());
        let got: Vec<_> = read.on(&out).fields().end_to_end().skip(1)
            .map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
        let same: Vec<_> = sent.iter()
            .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes())).collect();
        prop_assert_eq!(got, same);

        out.clear();
        HeadWriter::response(&mut out, status).end(framing, Persistence::Keep).unwrap();
        let mut read = ResponseHead::default();
        prop_assert_eq!(read.parse(&out, false, Limits::default()), Ok(Some(out.len())));
        prop_assert_eq!(read.status(), status);
        if !matches!(status, 204 | 304) {
            prop_assert_eq!(read.framing(), framing);
            prop_assert!(read.keeps_alive());
        }
    }
}
