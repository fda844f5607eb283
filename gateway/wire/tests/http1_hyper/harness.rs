//! Reads the same bytes with the codec and with hyper.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use fastllm_wire::http1::{
    BodySize, Client, ClientEof, Http1Error, Limits, ReceivedHead, RequestHead, ResponseHead,
    Server, Version,
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// One message as read by either parser. `first` is method and target, or the
/// status.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    first: String,
    version: Version,
    fields: Vec<(String, Vec<u8>)>,
    /// `None` if it is incomplete.
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
    fields: impl Iterator<Item = fastllm_wire::http1::HeaderField<'b>>,
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
            || server.respond(200, BodySize::Known(0)).is_err()
            || server.responded() != fastllm_wire::http1::NextAction::Head
        {
            break;
        }
    }
    all
}

fn body(
    input: &mut &[u8],
    mut decode: impl FnMut(&[u8]) -> Result<fastllm_wire::http1::DecodedBody, Http1Error>,
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

/// An absolute URI without a path has the path `/`.
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
    // Requests that hyper rejects are not compared.
    let _refused = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    all.take()
}

/// The response that the codec reads; `None` if it rejects it.
fn response(mut input: &[u8], is_head: bool) -> Option<Seen> {
    let (mut client, mut head) = (Client::new(Limits::default()), ResponseHead::default());
    client.begin(is_head).ok()?;
    client.sent();
    let len = loop {
        match client.read_head(input, &mut head).ok()? {
            ReceivedHead::Nothing => return None,
            ReceivedHead::Interim(len) => input = &input[len..],
            ReceivedHead::Response(len) => break len,
        }
    };
    let fields = ours(head.on(input).fields().iter());
    input = &input[len..];
    let ends = client.clone().eof(0) == ClientEof::Complete && !client.has_response();
    Some(Seen {
        first: head.status().to_string(),
        version: head.version(),
        fields,
        body: body(&mut input, |input| client.read_body(input), ends),
    })
}

/// The response that hyper reads.
async fn response_of_hyper(input: &[u8], is_head: bool) -> Option<Seen> {
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
        let (response, ()) = tokio::join!(sender.send_request(request), respond);
        let (head, body) = response.ok()?.into_parts();
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

/// The expected result of hyper: with the body only if the codec read all of
/// it.
fn agree(ours: &Seen, theirs: Option<&Seen>, input: &[u8]) {
    let mut theirs = theirs.cloned();
    if let (None, Some(theirs)) = (&ours.body, &mut theirs) {
        theirs.body = None;
    }
    assert_eq!(theirs.as_ref(), Some(ours), "{}", input.escape_ascii());
}

/// The number of complete requests that the codec reads from a connection;
/// hyper must read all of them alike.
pub(crate) fn check_requests(input: &[u8]) -> usize {
    let ours = requests(input);
    let theirs = runtime().block_on(requests_of_hyper(input));
    for (index, seen) in ours.iter().enumerate() {
        agree(seen, theirs.get(index), input);
    }
    ours.iter().filter(|seen| seen.body.is_some()).count()
}

/// Whether the codec accepts this as a response; hyper must read it alike.
pub(crate) fn check_response(input: &[u8], is_head: bool) -> bool {
    let ours = response(input, is_head);
    let theirs = runtime().block_on(response_of_hyper(input, is_head));
    if let Some(ours) = &ours {
        agree(ours, theirs.as_ref(), input);
    }
    ours.is_some_and(|ours| ours.body.is_some())
}
