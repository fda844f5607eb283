use proptest::prelude::*;

use super::BodyDecoder;
use crate::http1::{CHUNK_END, ChunkLine, Framing, Http1Error, LAST_CHUNK};
use crate::tests::cut;

/// The decoded body of these reads, and the number of bytes after its end;
/// `None` if it is incomplete.
fn read(framing: Framing, reads: &[Vec<u8>]) -> Result<(Vec<u8>, Option<usize>), Http1Error> {
    let mut body = BodyDecoder::new(framing);
    let mut data = Vec::new();
    let mut after = body.is_done().then_some(0);
    for read in reads {
        let mut rest = read.as_slice();
        while after.is_none() && !rest.is_empty() {
            let decoded = body.decode(rest)?;
            data.extend_from_slice(&rest[decoded.data]);
            assert!(decoded.consumed > 0, "no progress");
            assert_eq!(decoded.end, body.is_done());
            rest = &rest[decoded.consumed..];
            after = decoded.end.then_some(0);
        }
        if let Some(after) = &mut after {
            let decoded = body.decode(rest)?;
            assert!(decoded.end && decoded.consumed == 0 && decoded.data.is_empty());
            *after += rest.len();
        }
    }
    Ok((data, after))
}

fn chunked(text: &str) -> Result<(Vec<u8>, Option<usize>), Http1Error> {
    read(Framing::Chunked, &[text.as_bytes().to_vec()])
}

#[test]
fn chunks_are_joined() {
    for (text, data, after) in [
        ("0\r\n\r\n", "", Some(0)),
        ("0000\r\n\r\nGET", "", Some(3)),
        ("3\r\nabc\r\n0\r\n\r\n", "abc", Some(0)),
        (
            "3\r\nabc\r\n00a\r\n0123456789\r\n0\r\n\r\n\r\n",
            "abc0123456789",
            Some(2),
        ),
        ("A\r\n0123456789\r\n0\r\n\r\n", "0123456789", Some(0)),
        ("0000000000000001\r\nx\r\n0\r\n\r\n", "x", Some(0)),
        ("1;a=b;c=\"d e\t;\"\r\nx\r\n0;z\r\n\r\n", "x", Some(0)),
        (
            "1;\r\nx\r\n0\r\nA: b\r\nContent-Length:\r\n\r\n",
            "x",
            Some(0),
        ),
        ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", Some(0)),
        ("3\r\nab", "ab", None),
        ("3\r\nabc\r\n0\r\n\r", "abc", None),
    ] {
        assert_eq!(
            chunked(text),
            Ok((data.as_bytes().to_vec(), after)),
            "{text:?}"
        );
    }
}

#[test]
fn malformed_chunks_are_rejected() {
    for (text, reason) in [
        ("\r\n\r\n", Http1Error::ChunkSize),
        (";a\r\n", Http1Error::ChunkSize),
        ("g\r\n", Http1Error::ChunkSize),
        ("0x1\r\nx\r\n", Http1Error::ChunkSize),
        ("+1\r\nx\r\n", Http1Error::ChunkSize),
        ("-1\r\nx\r\n", Http1Error::ChunkSize),
        (" 1\r\nx\r\n", Http1Error::ChunkSize),
        ("1 \r\nx\r\n", Http1Error::ChunkSize),
        ("1 ;a\r\nx\r\n", Http1Error::ChunkSize),
        ("1\t\r\nx\r\n", Http1Error::ChunkSize),
        ("1_0\r\n", Http1Error::ChunkSize),
        ("1\nx\r\n", Http1Error::ChunkSize),
        ("1\rx\r\n", Http1Error::ChunkSize),
        ("00000000000000001\r\nx\r\n", Http1Error::ChunkSize),
        ("ffffffffffffffff0\r\n", Http1Error::ChunkSize),
        ("\u{661}\r\nx\r\n", Http1Error::ChunkSize),
        ("1;a\nx\r\n", Http1Error::ChunkExtension),
        ("1;\u{0}\r\nx\r\n", Http1Error::ChunkExtension),
        ("1;a\rx\r\n", Http1Error::ChunkSize),
        ("1\r\nxy\r\n", Http1Error::ChunkEnd),
        ("1\r\nx\n0\r\n\r\n", Http1Error::ChunkEnd),
        ("1\r\nx\r0\r\n\r\n", Http1Error::ChunkEnd),
        ("1\r\nx0\r\n\r\n", Http1Error::ChunkEnd),
        ("0\r\n\n", Http1Error::Trailer),
        ("0\r\n\rX", Http1Error::Trailer),
        ("0\r\nA: b\n\r\n", Http1Error::Trailer),
        ("0\r\nA: b\r\n c\r\n\r\n", Http1Error::Trailer),
        ("0\r\nA : b\r\n\r\n", Http1Error::Trailer),
        ("0\r\nA\r\n\r\n", Http1Error::Trailer),
        ("0\r\n: b\r\n\r\n", Http1Error::Trailer),
        ("0\r\nA: \u{7}\r\n\r\n", Http1Error::Trailer),
        ("0\r\nGET / HTTP/1.1\r\n\r\n", Http1Error::Trailer),
    ] {
        assert_eq!(chunked(text), Err(reason), "{text:?}");
    }
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let fits = format!("0;{}\r\n\r\n", "x".repeat(16 << 10));
    assert_eq!(chunked(&fits), Ok((Vec::new(), Some(0))));
    let many = format!("1;{}\r\nx\r\n", "x".repeat(1 << 10)).repeat(17);
    for text in [format!("0;x{}", &fits[2..]), many] {
        assert_eq!(chunked(&text), Err(Http1Error::ChunkExtension));
    }
    let line = format!("a:{}\r\n", "x".repeat((1 << 10) - 2));
    let short = "a:\r\n";
    for (line, most) in [(line.as_str(), 8), (short, 64)] {
        let fits = format!("0\r\n{}\r\n", line.repeat(most));
        assert_eq!(chunked(&fits), Ok((Vec::new(), Some(0))));
        let over = format!("0\r\n{}{short}\r\n", line.repeat(most));
        assert_eq!(chunked(&over), Err(Http1Error::Trailer));
    }
}

#[test]
fn a_huge_chunk_is_decoded_incrementally() {
    let mut body = BodyDecoder::new(Framing::Chunked);
    let input = b"ffffffffffffffff\r\nabc";
    let decoded = body.decode(input).unwrap();
    assert_eq!(&input[decoded.data], b"abc");
    assert_eq!((decoded.consumed, decoded.end), (input.len(), false));
    assert_eq!(body.left(), None);
    assert_eq!(body.eof(), Err(Http1Error::Truncated));
}

#[test]
fn other_bodies_end_at_their_length_or_at_connection_close() {
    let all = [b"abc".to_vec(), b"def".to_vec()];
    assert_eq!(read(Framing::None, &all), Ok((Vec::new(), Some(6))));
    assert_eq!(read(Framing::Length(0), &all), Ok((Vec::new(), Some(6))));
    assert_eq!(
        read(Framing::Length(4), &all),
        Ok((b"abcd".to_vec(), Some(2)))
    );
    assert_eq!(
        read(Framing::UntilClose, &all),
        Ok((b"abcdef".to_vec(), None))
    );
    let mut body = BodyDecoder::new(Framing::Length(u64::MAX));
    body.decode(b"abc").unwrap();
    assert_eq!(body.left(), Some(u64::MAX - 3));
    assert_eq!(body.eof(), Err(Http1Error::Truncated));
    let mut body = BodyDecoder::new(Framing::UntilClose);
    assert_eq!((body.left(), body.is_done()), (None, false));
    assert_eq!(body.eof(), Ok(()));
    assert_eq!((body.left(), body.is_done()), (Some(0), true));
}

proptest! {
    #[test]
    fn chunked_data_is_decoded_with_any_read_boundaries(
        parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..8),
        rest in proptest::collection::vec(any::<u8>(), 0..20),
        positions in proptest::collection::vec(any::<usize>(), 0..30),
    ) {
        let mut sent = Vec::new();
        for part in &parts {
            let line = ChunkLine::new(part.len().try_into().unwrap());
            sent.extend([line.as_bytes(), part, CHUNK_END].concat());
        }
        sent.extend_from_slice(LAST_CHUNK);
        sent.extend_from_slice(&rest);
        let expected = (parts.concat(), Some(rest.len()));
        prop_assert_eq!(read(Framing::Chunked, &cut(&sent, &positions)), Ok(expected));
    }

    #[test]
    fn read_boundaries_do_not_matter(
        text in "([0-3]{1,2}[;a ]{0,2}\r?\n|[a-c]{1,3}(\r\n)?|\r\n){0,9}",
        positions in proptest::collection::vec(any::<usize>(), 0..9),
    ) {
        let text = text.as_bytes();
        let whole = read(Framing::Chunked, &[text.to_vec()]);
        prop_assert_eq!(read(Framing::Chunked, &cut(text, &positions)), whole);
    }
}
