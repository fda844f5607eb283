//! The codec beside hyper: every message that the codec accepts, hyper reads
//! in the same way. What hyper takes beyond that is the codec's strictness:
//!
//! - line ends without CR, more than two blank lines before a request;
//! - a length beside a transfer coding, repeated lengths that agree, several
//!   codings, white space or LF in chunk framing, trailers that are malformed;
//! - a missing, repeated or odd host, targets with fragments, escapes that URIs
//!   do not have, `*` and `host:port`;
//! - expectations other than `100-continue`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use fastllm_wire::http1::{
    Client, ClientEnd, Http1Error, Limits, RequestHead, ResponseHead, Server, Size, Version,
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// One message, as either side saw it. The first is method and target, or the
/// status.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    first: String,
    version: Version,
    fields: Vec<(String, Vec<u8>)>,
    /// `None` if it did not end.
    body: Option<Vec<u8>>,
}

fn version(version: hyper::Version) -> Version {
    if version == hyper::Version::HTTP_10 {
        Version::Http10
    } else {
        Version::Http11
    }
}

fn fields(map: &hyper::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<_> = map
        .iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    fields.sort();
    fields
}

fn ours<'b>(
    fields: impl Iterator<Item = fastllm_wire::http1::Field<'b>>,
) -> Vec<(String, Vec<u8>)> {
    let lower = |name: &[u8]| String::from_utf8(name.to_ascii_lowercase()).unwrap();
    let mut fields: Vec<_> = fields
        .map(|field| (lower(field.name), field.value.to_vec()))
        .collect();
    fields.sort();
    fields
}

/// The requests that the codec reads from one connection.
fn requests(mut input: &[u8]) -> Vec<Seen> {
    let (mut server, mut head) = (Server::new(Limits::default()), RequestHead::default());
    let mut all = Vec::new();
    while let Ok(Some(len)) = server.read_head(input, &mut head) {
        let request = head.on(input);
        let method = String::from_utf8_lossy(request.method());
        let mut target = String::from_utf8_lossy(request.path()).into_owned();
        if let Some(query) = request.query() {
            target = format!("{target}?{}", String::from_utf8_lossy(query));
        }
        let mut seen = Seen {
            first: format!("{method} {target}"),
            version: head.version(),
            fields: ours(request.fields().iter()),
            body: None,
        };
        input = &input[len..];
        seen.body = body(&mut input, |input| server.read_body(input), false);
        let complete = seen.body.is_some();
        all.push(seen);
        if !complete
            || server.respond(200, Size::Known(0)).is_err()
            || server.responded() != fastllm_wire::http1::Next::Head
        {
            break;
        }
    }
    all
}

fn body(
    input: &mut &[u8],
    mut decode: impl FnMut(&[u8]) -> Result<fastllm_wire::http1::Decoded, Http1Error>,
    until_close: bool,
) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let part = decode(input).ok()?;
        body.extend_from_slice(&input[part.data]);
        *input = &input[part.consumed..];
        if part.end {
            return Some(body);
        }
        if input.is_empty() {
            return until_close.then_some(body);
        }
    }
}

/// A whole URI without a path has the path `/`.
fn path_and_query(uri: &hyper::Uri) -> String {
    match uri.query() {
        Some(query) => format!("{}?{query}", uri.path()),
        None => uri.path().to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the limit")]
async fn whole(body: Incoming) -> Option<Vec<u8>> {
    let read = Limited::new(body, 1 << 20).collect().await;
    Some(read.ok()?.to_bytes().to_vec())
}

/// The requests that hyper reads from one connection.
async fn requests_of_hyper(input: &[u8]) -> Vec<Seen> {
    let all = Rc::new(RefCell::new(Vec::new()));
    let (mut peer, stream) = tokio::io::duplex(1 << 20);
    peer.write_all(input).await.unwrap();
    peer.shutdown().await.unwrap();
    let service = service_fn(|request: Request<Incoming>| {
        let all = Rc::clone(&all);
        async move {
            let (head, body) = request.into_parts();
            let mut seen = Seen {
                first: format!("{} {}", head.method, path_and_query(&head.uri)),
                version: version(head.version),
                fields: fields(&head.headers),
                body: None,
            };
            seen.body = whole(body).await;
            all.borrow_mut().push(seen);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    // What hyper refuses is not the question.
    let _refused = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    all.take()
}

/// The answer that the codec reads; `None` if it refuses it.
fn answer(mut input: &[u8], is_head: bool) -> Option<Seen> {
    let (mut client, mut head) = (Client::new(Limits::default()), ResponseHead::default());
    client.begin(is_head).ok()?;
    client.sent();
    loop {
        let len = client.read_head(input, &mut head).ok()??;
        if !head.is_interim() {
            let fields = ours(head.on(input).fields().iter());
            input = &input[len..];
            let mut seen = Seen {
                first: head.status().to_string(),
                version: head.version(),
                fields,
                body: None,
            };
            let mut until_close = client.clone();
            let ends = until_close.eof(0) == ClientEnd::Complete && !client.has_answer();
            seen.body = body(&mut input, |input| client.read_body(input), ends);
            return Some(seen);
        }
        input = &input[len..];
    }
}

/// The answer that hyper reads.
async fn answer_of_hyper(input: &[u8], is_head: bool) -> Option<Seen> {
    let (mut peer, stream) = tokio::io::duplex(1 << 20);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = if is_head {
        hyper::Method::HEAD
    } else {
        hyper::Method::GET
    };
    let talk = async {
        let respond = async {
            let mut request = [0; 256];
            let _there = peer.read(&mut request).await.unwrap();
            peer.write_all(input).await.unwrap();
            peer.shutdown().await.unwrap();
        };
        let (answer, ()) = tokio::join!(sender.send_request(request), respond);
        let (head, body) = answer.ok()?.into_parts();
        Some(Seen {
            first: head.status.as_u16().to_string(),
            version: version(head.version),
            fields: fields(&head.headers),
            body: whole(body).await,
        })
    };
    let (seen, _ended) = tokio::join!(talk, connection);
    seen
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

fn check_requests(input: &[u8]) -> Result<usize, TestCaseError> {
    let ours = requests(input);
    let theirs = runtime().block_on(requests_of_hyper(input));
    for (index, seen) in ours.iter().enumerate() {
        prop_assert_eq!(theirs.get(index), Some(seen), "{}", input.escape_ascii());
    }
    Ok(ours.iter().filter(|seen| seen.body.is_some()).count())
}

fn check_answer(input: &[u8], is_head: bool) -> Result<bool, TestCaseError> {
    let ours = answer(input, is_head);
    let theirs = runtime().block_on(answer_of_hyper(input, is_head));
    if ours.is_some() {
        prop_assert_eq!(&theirs, &ours, "{}", input.escape_ascii());
    }
    Ok(ours.is_some())
}

/// Header lines, of which most are good.
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

/// Bytes put somewhere: what a smuggler would try.
fn bruise(text: String, at: usize, with: Option<&'static str>) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    if let Some(with) = with {
        let at = at % (bytes.len() + 1);
        bytes.splice(at..at, with.bytes());
    }
    bytes
}

fn bruises() -> impl Strategy<Value = Option<&'static str>> {
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
        with in bruises(),
    ) {
        check_requests(&bruise(requests.concat(), at, with))?;
    }

    #[test]
    fn hyper_reads_every_accepted_answer_alike(
        interim in prop_oneof![4 => Just(""), 1 => Just("HTTP/1.1 100 Continue\r\n\r\n")],
        version in "HTTP/1.[01]",
        status in prop_oneof![4 => Just(200), 1 => 200_u16..1000, 1 => Just(204), 1 => Just(304)],
        lines in lines(),
        body in bodies(),
        is_head in prop_oneof![4 => Just(false), 1 => Just(true)],
        at: usize,
        with in bruises(),
    ) {
        let text = format!("{interim}{version} {status} R\r\n{lines}\r\n{body}");
        check_answer(&bruise(text, at, with), is_head)?;
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
    assert_eq!(check_requests(input).unwrap(), 4);
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
        assert!(
            check_answer(answer.as_bytes(), is_head).unwrap(),
            "{answer}"
        );
    }
}
