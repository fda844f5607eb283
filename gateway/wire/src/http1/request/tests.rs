use proptest::prelude::*;

use super::RequestHead;
use crate::http1::{Framing, Http1Error, Limits, Version};

const SDK: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\n\
    Host: gateway.example:4000\r\n\
    Accept-Encoding: gzip, deflate\r\n\
    Connection: keep-alive\r\n\
    Accept: application/json\r\n\
    Content-Type: application/json\r\n\
    User-Agent: OpenAI/Python 1.99.0\r\n\
    X-Stainless-Lang: python\r\n\
    Authorization: Bearer sk-0123456789\r\n\
    Content-Length: 1024\r\n\r\n";

fn parse(head: &[u8]) -> Result<Option<usize>, Http1Error> {
    RequestHead::default().parse(head, Limits::default())
}

/// A POST with these lines besides its `host`.
fn with(lines: &str) -> Result<RequestHead, Http1Error> {
    let text = format!("POST / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
    let mut head = RequestHead::default();
    let len = head.parse(text.as_bytes(), Limits::default())?;
    assert_eq!(len, Some(text.len()), "{lines:?}");
    Ok(head)
}

#[test]
fn the_head_of_an_sdk_is_parsed() {
    let mut head = RequestHead::default();
    let bytes = [SDK, b"{\"mess"].concat();
    assert_eq!(head.parse(&bytes, Limits::default()), Ok(Some(SDK.len())));
    let request = head.on(&bytes);
    assert_eq!(request.method(), b"POST");
    assert_eq!(request.target(), b"/v1/chat/completions");
    assert_eq!(request.query(), None);
    assert_eq!(
        request.authority(),
        Some(b"gateway.example:4000".as_slice())
    );
    let fields = request.fields();
    assert_eq!(fields.len(), 9);
    assert_eq!(
        fields.get("AUTHORIZATION"),
        Some(b"Bearer sk-0123456789".as_slice())
    );
    assert_eq!(fields.get("authorisation"), None);
    assert_eq!(head.framing(), Framing::Length(1024));
    assert!(head.keeps_alive() && !head.expects_continue() && !head.is_head());
    let passed: Vec<_> = fields.end_to_end().map(|field| field.name).collect();
    assert_eq!(passed.len(), 7);
    assert!(!passed.contains(&b"Content-Length".as_slice()));
}

#[test]
fn a_reused_head_keeps_nothing_of_the_last_request() {
    let mut head = RequestHead::default();
    let first = b"HEAD http://a/ HTTP/1.1\r\nHost: h\r\nConnection: close, x\r\nX: 1\r\n\
        Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
    head.parse(first, Limits::default()).unwrap().unwrap();
    assert!(head.is_head() && head.expects_continue() && !head.keeps_alive());
    assert!(head.on(first).fields().is_hop_by_hop(b"x"));
    assert_eq!(head.on(first).authority(), Some(b"a".as_slice()));
    let next = b"GET / HTTP/1.1\r\nHost: b\r\n\r\n";
    head.parse(next, Limits::default()).unwrap().unwrap();
    assert!(!head.is_head() && !head.expects_continue() && head.keeps_alive());
    assert_eq!(head.framing(), Framing::None);
    assert_eq!(head.on(next).fields().len(), 1);
    assert!(!head.on(next).fields().is_hop_by_hop(b"x"));
    assert_eq!(head.on(next).authority(), Some(b"b".as_slice()));
}

#[test]
fn fields_named_by_connection_are_hop_by_hop() {
    let text = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: X-Hop ,keep-alive\r\n\
        connection:\t Other\r\nx-hop: 1\r\nOTHER: 2\r\nx-end: 3\r\nKeep-Alive: 5\r\n\r\n";
    let mut head = RequestHead::default();
    head.parse(text, Limits::default()).unwrap().unwrap();
    let passed: Vec<_> = head
        .on(text)
        .fields()
        .end_to_end()
        .map(|field| (field.name, field.value))
        .collect();
    assert_eq!(
        passed,
        [(b"Host".as_slice(), b"h".as_slice()), (b"x-end", b"3")]
    );
}

#[test]
fn the_version_determines_the_default_persistence() {
    for (version, line, keeps) in [
        ("1.1", "", true),
        ("1.1", "Connection: Close\r\n", false),
        ("1.1", "Connection: keep-alive, close\r\n", false),
        (
            "1.1",
            "Connection: close\r\nConnection: keep-alive\r\n",
            false,
        ),
        ("1.1", "Connection: closed\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: h\r\n{line}\r\n");
        let mut head = RequestHead::default();
        head.parse(text.as_bytes(), Limits::default())
            .unwrap()
            .unwrap();
        assert_eq!(head.keeps_alive(), keeps, "{text:?}");
        let is_old = head.version() == Version::Http10;
        assert_eq!(is_old, version == "1.0");
    }
}

#[test]
fn an_ambiguous_length_is_rejected() {
    assert_eq!(with("").unwrap().framing(), Framing::None);
    assert_eq!(
        with("content-LENGTH:\t007 \r\n").unwrap().framing(),
        Framing::Length(7)
    );
    for value in [
        "",
        " ",
        "+5",
        "-5",
        "5,5",
        "5, 5",
        "5 5",
        "0x5",
        "5.0",
        "5;",
        "1e3",
        "\u{0665}",
        "18446744073709551616",
    ] {
        let lines = format!("Content-Length: {value}\r\n");
        assert_eq!(
            with(&lines).err(),
            Some(Http1Error::LengthInvalid),
            "{value:?}"
        );
    }
    for lines in [
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nX: y\r\ncontent-length: 6\r\n",
    ] {
        assert_eq!(with(lines).err(), Some(Http1Error::LengthRepeated));
    }
}

#[test]
fn a_transfer_coding_other_than_chunked_is_rejected() {
    for value in ["chunked", "CHUNKED", "chunked\t"] {
        let head = with(&format!("Transfer-Encoding: {value}\r\n")).unwrap();
        assert_eq!(head.framing(), Framing::Chunked, "{value:?}");
    }
    for (value, reason) in [
        ("", Http1Error::CodingInvalid),
        (",chunked", Http1Error::CodingInvalid),
        ("chunked,", Http1Error::CodingInvalid),
        ("chunked, chunked", Http1Error::CodingInvalid),
        ("gzip, chunked", Http1Error::CodingUnsupported),
        ("chunked, gzip", Http1Error::CodingUnsupported),
        ("identity", Http1Error::CodingUnsupported),
        ("identity, chunked", Http1Error::CodingUnsupported),
        ("xchunked", Http1Error::CodingUnsupported),
        ("chunked;q=1", Http1Error::CodingUnsupported),
        ("\"chunked\"", Http1Error::CodingUnsupported),
        ("chun ked", Http1Error::CodingUnsupported),
        ("chunked\u{a0}", Http1Error::CodingUnsupported),
        ("\u{212a}chunked", Http1Error::CodingUnsupported),
        ("\u{b}chunked", Http1Error::FieldValue),
        ("chunked\u{0}", Http1Error::FieldValue),
    ] {
        let lines = format!("Transfer-Encoding: {value}\r\n");
        assert_eq!(with(&lines).err(), Some(reason), "{value:?}");
    }
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(with(twice).err(), Some(Http1Error::CodingInvalid));
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: gzip\r\n",
    ] {
        assert_eq!(with(lines).err(), Some(Http1Error::LengthAndCoding));
    }
    let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(parse(old), Err(Http1Error::CodingVersion));
}

const BAD_LINES: &[(&str, Http1Error)] = &[
    ("GET / HTTP/1.1\nHost: h\n\n", Http1Error::LineEnd),
    ("GET / HTTP/1.1\nHost: h\r\n\r\n", Http1Error::LineEnd),
    ("GET / HTTP/1.1\r\nHost: h\n\r\n", Http1Error::LineEnd),
    ("GET / HTTP/1.1\r\nHost: h\r\n\n", Http1Error::LineEnd),
    (
        "GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n",
        Http1Error::LineEnd,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX:\nY: z\r\n\r\n",
        Http1Error::LineEnd,
    ),
    ("GET / HTTP/1.1\rHost: h\r\n\r\n", Http1Error::LineEnd),
    (
        "GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
        Http1Error::FieldValue,
    ),
    ("GET / HTTP/1.1\r\nHost: h\r\n\rX", Http1Error::LineEnd),
    (
        "GET / HTTP/1.1\r\nHost: h\r\n X: y\r\n\r\n",
        Http1Error::FieldName,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX: y\r\n\tz\r\n\r\n",
        Http1Error::FieldName,
    ),
    ("GET / HTTP/1.1\r\n Host: h\r\n\r\n", Http1Error::FieldName),
    ("GET / HTTP/1.1\r\nHost : h\r\n\r\n", Http1Error::FieldName),
    ("GET / HTTP/1.1\r\nHost\t: h\r\n\r\n", Http1Error::FieldName),
    ("GET / HTTP/1.1\r\nHost\r\n\r\n", Http1Error::FieldName),
    ("GET / HTTP/1.1\r\n: h\r\n\r\n", Http1Error::FieldName),
    ("GET / HTTP/1.1\r\nHo st: h\r\n\r\n", Http1Error::FieldName),
    (
        "GET / HTTP/1.1\r\nH\u{e9}: h\r\n\r\n",
        Http1Error::FieldName,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX: \u{0}\r\n\r\n",
        Http1Error::FieldValue,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX: a\u{7f}b\r\n\r\n",
        Http1Error::FieldValue,
    ),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nX: a\u{c}b\r\n\r\n",
        Http1Error::FieldValue,
    ),
    (
        "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
        Http1Error::RequestLine,
    ),
    (
        "GET /  HTTP/1.1\r\nHost: h\r\n\r\n",
        Http1Error::RequestLine,
    ),
    (
        "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n",
        Http1Error::RequestLine,
    ),
    ("GET / HTTP/1.1 \r\nHost: h\r\n\r\n", Http1Error::LineEnd),
    (
        " GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        Http1Error::RequestLine,
    ),
    ("GET /\r\nHost: h\r\n\r\n", Http1Error::RequestLine),
    ("G(T / HTTP/1.1\r\nHost: h\r\n\r\n", Http1Error::RequestLine),
    ("GET / http/1.1\r\nHost: h\r\n\r\n", Http1Error::RequestLine),
    (
        "GET / HTTPS/1.1\r\nHost: h\r\n\r\n",
        Http1Error::RequestLine,
    ),
    ("GET / HTTP/1.2\r\nHost: h\r\n\r\n", Http1Error::Version),
    ("GET / HTTP/0.9\r\nHost: h\r\n\r\n", Http1Error::Version),
    ("GET / HTTP/11\r\nHost: h\r\n\r\n", Http1Error::Version),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Http1Error::Version),
    ("\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", Http1Error::LineEnd),
    ("\rGET / HTTP/1.1\r\nHost: h\r\n\r\n", Http1Error::LineEnd),
    (
        "\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        Http1Error::LineEnd,
    ),
];

#[test]
fn malformed_lines_are_rejected() {
    for &(head, reason) in BAD_LINES {
        assert_eq!(parse(head.as_bytes()), Err(reason), "{head:?}");
    }
    for head in [
        "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:h\r\nX:\r\nY: \t \r\nZ: \u{e9}\ta \t\r\n\r\n",
    ] {
        assert_eq!(parse(head.as_bytes()), Ok(Some(head.len())), "{head:?}");
    }
}

#[test]
fn a_request_requires_one_host_and_a_resource_target() {
    for (head, reason) in [
        ("GET / HTTP/1.1\r\n\r\n", Http1Error::HostMissing),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            Http1Error::HostRepeated,
        ),
        (
            "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
            Http1Error::HostRepeated,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
            Http1Error::HostInvalid,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
            Http1Error::HostInvalid,
        ),
        (
            "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
            Http1Error::HostInvalid,
        ),
        ("GET http://a/ HTTP/1.1\r\n\r\n", Http1Error::HostMissing),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Http1Error::Target),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
            Http1Error::Target,
        ),
        ("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", Http1Error::Target),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", Http1Error::Target),
        ("GET /#f HTTP/1.1\r\nHost: a\r\n\r\n", Http1Error::Target),
        (
            "GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n",
            Http1Error::Target,
        ),
    ] {
        assert_eq!(parse(head.as_bytes()), Err(reason), "{head:?}");
    }
    assert!(parse(b"GET / HTTP/1.1\r\nHost:\r\n\r\n").unwrap().is_some());
}

#[test]
fn only_100_continue_is_a_valid_expectation() {
    let expects = |lines: &str| with(lines).map(|head| head.expects_continue());
    let chunked = "Transfer-Encoding: chunked\r\n";
    assert_eq!(
        expects(&format!("{chunked}Expect: 100-Continue\r\n")),
        Ok(true)
    );
    assert_eq!(
        expects("Content-Length: 1\r\nExpect: 100-continue\r\n"),
        Ok(true)
    );
    assert_eq!(
        expects("Content-Length: 0\r\nExpect: 100-continue\r\n"),
        Ok(false)
    );
    assert_eq!(expects("Expect: 100-continue\r\n"), Ok(false));
    for lines in [
        "Expect: 200-ok\r\n",
        "Expect: 100-continue, x\r\n",
        "Expect: x\r\nExpect: 100-continue\r\n",
        "Expect: 100-continue\r\nExpect: x\r\n",
    ] {
        assert_eq!(expects(lines), Err(Http1Error::Expectation), "{lines:?}");
    }
    let old = b"POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: x\r\n\r\n";
    let mut head = RequestHead::default();
    head.parse(old, Limits::default()).unwrap().unwrap();
    assert!(!head.expects_continue());
}

#[test]
fn exceeding_a_limit_of_a_head_has_its_own_status() {
    let limits = Limits {
        head: 128,
        line: 64,
        fields: 2,
    };
    let status = |text: &str| {
        let result = RequestHead::default().parse(text.as_bytes(), limits);
        result.map_err(Http1Error::status)
    };
    let long = "x".repeat(200);
    let fits = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", &long[..48]);
    assert_eq!(fits.find('\n'), Some(63));
    assert_eq!(status(&fits), Ok(Some(fits.len())));
    for text in [
        format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", &long[..49]),
        format!("\r\n\r\nGET /{}", &long[..64]),
        format!("GET /{long}"),
    ] {
        assert_eq!(status(&text), Err(414), "{text:?}");
    }
    assert_eq!(
        status(&format!("GET / HTTP/1.1\r\nX: {}", &long[..100])),
        Ok(None)
    );
    for text in [
        format!("GET / HTTP/1.1\r\nHost: h\r\nX: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nX: {long}"),
        "GET / HTTP/1.1\r\nHost: h\r\na: b\r\nc: d\r\n\r\n".to_owned(),
    ] {
        assert_eq!(status(&text), Err(431), "{text:?}");
    }
    assert_eq!(status("GET / HTTP/3.0\r\n\r\n"), Err(505));
    assert_eq!(
        status("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n"),
        Err(501)
    );
    let many = "x: y\r\n".repeat(101);
    assert_eq!(with(&many).err(), Some(Http1Error::TooManyFields));
    let all = Limits {
        fields: 1000,
        ..Limits::default()
    };
    let ninety = "x: y\r\n".repeat(90);
    let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{ninety}\r\n");
    let mut head = RequestHead::default();
    assert_eq!(head.parse(text.as_bytes(), all), Ok(Some(text.len())));
}

#[test]
fn a_head_received_byte_by_byte_is_parsed_only_a_few_times() {
    let mut head = RequestHead::default();
    let long = format!(
        "GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n",
        "y".repeat(40_000)
    );
    let mut looks = 0;
    for len in 1..long.len() {
        let before = head.progress.parsed;
        assert_eq!(
            head.parse(&long.as_bytes()[..len], Limits::default()),
            Ok(None)
        );
        looks += usize::from(head.progress.parsed != before);
    }
    assert!(looks <= 17, "{looks}");
    assert_eq!(
        head.parse(long.as_bytes(), Limits::default()),
        Ok(Some(long.len()))
    );
}

fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just(b"Host: h\r\n".to_vec()),
        Just(b"Content-Length: 3\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b"Connection: close\r\n".to_vec()),
        Just(b"X: y\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b" \r\n".to_vec()),
        "[a-z]{1,3}: ?[ -~]{0,9}\r\n".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..4),
    ];
    let first = prop_oneof![
        4 => Just(b"GET / HTTP/1.1\r\n".to_vec()),
        1 => Just(b"\r\nPOST http://a/b HTTP/1.0\r\n".to_vec()),
        1 => "[A-Z]{1,9} [!-~]{1,60} HTTP/[12].[01]\r\n".prop_map(String::into_bytes),
        1 => Just(b"\r\r".to_vec()),
    ];
    (first, proptest::collection::vec(line, 0..6), any::<bool>()).prop_map(
        |(first, lines, ends)| {
            let mut all = first;
            all.extend(lines.concat());
            if ends {
                all.extend(b"\r\n\r\nrest");
            }
            all
        },
    )
}

proptest! {
    /// Read boundaries do not change the parsed head. A rejected head is
    /// rejected for the same reason, once the codec parses it again.
    #[test]
    fn read_boundaries_do_not_matter(text in lines(), step in 1_usize..7) {
        let limits = Limits { head: 96, line: 40, fields: 4 };
        let mut whole = RequestHead::default();
        let expected = whole.parse(&text, limits);
        let mut head = RequestHead::default();
        let mut result = Ok(None);
        let mut len = 0;
        while len < text.len() && result == Ok(None) {
            len = (len + step).min(text.len());
            result = head.parse(&text[..len], limits);
        }
        match expected {
            Err(_) if result == Ok(None) => {}
            expected => prop_assert_eq!(result, expected),
        }
        if let Ok(Some(_)) = expected {
            prop_assert_eq!(head.framing(), whole.framing());
            prop_assert_eq!(head.on(&text).target(), whole.on(&text).target());
            let fields = |head: &RequestHead| head.on(&text).fields().iter()
                .map(|field| (field.name.to_vec(), field.value.to_vec())).collect::<Vec<_>>();
            prop_assert_eq!(fields(&head), fields(&whole));
        }
    }
}
