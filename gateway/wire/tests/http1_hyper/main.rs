//! Compares the codec with hyper: every message that the codec accepts is read
//! by hyper in the same way. hyper also accepts messages that the codec
//! rejects:
//!
//! - line ends without CR, more than two blank lines before a request;
//! - a length beside a transfer coding, repeated lengths that agree, several
//!   codings, white space or LF in chunk framing, trailers that are malformed;
//! - a missing, repeated or odd host, targets with fragments, escapes that URIs
//!   do not have, `*` and `host:port`;
//! - expectations other than `100-continue`.
#![expect(clippy::unwrap_used, reason = "tests")]

mod harness;

use harness::{check_requests, check_response};
use proptest::prelude::*;

/// Header lines, most of them valid.
fn lines() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        6 => "[a-zA-Z-]{1,9}: ?[ -~]{0,12}\r\n",
        2 => Just("Content-Length: 3\r\n".to_owned()),
        2 => Just("Transfer-Encoding: chunked\r\n".to_owned()),
        1 => "(?i)(content-length|transfer-encoding): [0-9a-z, ]{0,9}\r\n",
        1 => "Connection: (close|keep-alive|Upgrade|x), ?(close|keep-alive|x)\r\n",
        1 => "Connection: (close|keep-alive)\r\n",
        1 => Just("Expect: 100-continue\r\n".to_owned()),
        1 => Just("Upgrade: websocket\r\n".to_owned()),
        1 => Just("x: y\n".to_owned()),
        1 => Just("x: \u{e9}\t\u{e9}\r\n".to_owned()),
    ];
    proptest::collection::vec(line, 0..4).prop_map(|lines| lines.concat())
}

fn bodies() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just(String::new()),
        3 => Just("abc".to_owned()),
        3 => "(1(;[a-z=]{0,3})?\r\n[a-z]\r\n){0,3}0\r\n([A-Za-z]{1,3}: [a-z]{0,3}\r\n){0,2}\r\n",
        1 => "[0-3]{1,2}[ ;x]{0,2}\r?\n[a-z]{1,3}\r?\n0\r\n\r?\n",
        1 => Just("\r\n".to_owned()),
    ]
}

/// Inserts bytes somewhere, as in request smuggling.
fn corrupt(text: String, at: usize, with: Option<&'static str>) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    if let Some(with) = with {
        let at = at % (bytes.len() + 1);
        bytes.splice(at..at, with.bytes());
    }
    bytes
}

fn corruptions() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![
        3 => Just(None),
        1 => proptest::sample::select(vec![
            "\r", "\n", "\r\n", " ", "\t", "\0", ":", "\u{b}", "0", "x", ",", ";", "#", "\"",
        ]).prop_map(Some),
    ]
}

fn request() -> impl Strategy<Value = String> {
    let target = prop_oneof![
        4 => Just("/v1/models".to_owned()),
        2 => "/[!-~]{0,9}",
        1 => "https?://[a-z0-9.]{1,9}(:[0-9]{1,4})?(/[a-z]{0,3})?(\\?[a-z=]{0,3})?",
        1 => Just("*".to_owned()),
    ];
    let host = prop_oneof![
        8 => Just("Host: h\r\n".to_owned()),
        1 => "Host: ?[ -~]{0,6}\r\n",
    ];
    let method = prop_oneof![3 => "(GET|POST|HEAD|PUT|OPTIONS)", 1 => "[A-Z]{1,7}"];
    (method, target, "HTTP/1.[01]", host, lines(), bodies()).prop_map(
        |(method, target, version, host, lines, body)| {
            format!("{method} {target} {version}\r\n{host}{lines}\r\n{body}")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hyper_reads_every_accepted_request_alike(
        requests in proptest::collection::vec(request(), 1..4),
        at: usize,
        with in corruptions(),
    ) {
        check_requests(&corrupt(requests.concat(), at, with));
    }

    #[test]
    fn hyper_reads_every_accepted_response_alike(
        interim in prop_oneof![4 => Just(""), 1 => Just("HTTP/1.1 100 Continue\r\n\r\n")],
        version in "HTTP/1.[01]",
        status in prop_oneof![4 => Just(200), 1 => 200_u16..1000, 1 => Just(204), 1 => Just(304)],
        lines in lines(),
        body in bodies(),
        is_head in prop_oneof![4 => Just(false), 1 => Just(true)],
        at: usize,
        with in corruptions(),
    ) {
        let text = format!("{interim}{version} {status} R\r\n{lines}\r\n{body}");
        check_response(&corrupt(text, at, with), is_head);
    }
}

/// The property tests above would pass if nothing were accepted.
#[test]
fn plain_messages_are_accepted_by_both() {
    let input = b"POST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
        GET http://h HTTP/1.1\r\nHost: h\r\n\r\n\
        PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nX: 1\r\nx: 2\r\n\r\n\
        3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n\r\n\
        GET / HTTP/1.0\r\n\r\n";
    assert_eq!(check_requests(input), 4);
    for (answer, is_head) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true),
        ("HTTP/1.0 200 OK\r\n\r\nabc", false),
        (
            "HTTP/1.1 100 X\r\n\r\nHTTP/1.1 404 \r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            false,
        ),
        ("HTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n", false),
    ] {
        assert!(check_response(answer.as_bytes(), is_head), "{answer}");
    }
}
