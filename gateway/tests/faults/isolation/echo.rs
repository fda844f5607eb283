use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{KEY, MARK};
use crate::support::Reader;

/// Response behaviours that a request can select. Harmless ones are more frequent.
pub(super) const MANNERS: [&str; 16] = [
    "well",
    "well",
    "well",
    "well",
    "well",
    "well",
    "slowly",
    "slowly",
    "after hints",
    "and close",
    "close within",
    "reset within",
    "die",
    "corrupt",
    "until close",
    "refuse",
];

/// An upstream that echoes the mark of each request and checks for data that it
/// must not receive.
#[derive(Debug)]
pub(super) struct Echo {
    address: SocketAddr,
    heard: Arc<Mutex<EchoedRequests>>,
    _tasks: JoinSet<()>,
}

/// The requests that it received.
#[derive(Debug, Clone, Default)]
pub(super) struct EchoedRequests {
    pub(super) requests: usize,
    /// Requests on a connection that earlier carried another client's request.
    pub(super) shared: usize,
    pub(super) faults: Vec<String>,
}

impl Echo {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::<Mutex<EchoedRequests>>::default();
        let shared = Arc::clone(&heard);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(connection(stream, Arc::clone(&shared)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            heard,
            _tasks: tasks,
        }
    }

    pub(super) fn api_base(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(super) fn heard(&self) -> EchoedRequests {
        self.heard.lock().clone()
    }
}

/// What happens to a connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterResponse {
    GoOn,
    Close,
    Reset,
}

async fn connection(stream: TcpStream, heard: Arc<Mutex<EchoedRequests>>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = Reader::new(reader);
    let mut last = None;
    while let Some(request) = reader.message().await {
        if request.word(0) == "GET" {
            let probed = writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
            if probed.await.is_err() {
                return;
            }
            continue;
        }
        let whole = format!("{}{}", request.head, String::from_utf8_lossy(&request.body));
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let client = heard.lock().listen(&whole, &body, last.as_ref());
        let begun = last.replace(client).is_some();
        let auth = request.headers("authorization").join(",");
        let then = respond(&mut writer, &body, &auth, begun).await;
        match then {
            Ok(AfterResponse::GoOn) => {}
            Ok(AfterResponse::Close) | Err(_) => return,
            Ok(AfterResponse::Reset) => {
                let socket = SockRef::from(writer.as_ref());
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                writer.forget();
                return;
            }
        }
    }
}

impl EchoedRequests {
    /// Records a request and any data that it must not contain; returns its
    /// client.
    fn listen(&mut self, whole: &str, body: &Value, last: Option<&String>) -> String {
        self.requests += 1;
        let marks: BTreeSet<&str> = whole
            .split(MARK)
            .skip(1)
            .map(|rest| rest.split(';').next().unwrap_or_default())
            .collect();
        let own = body["mark"].as_str().unwrap_or_default();
        let own = own.trim_start_matches(MARK).trim_end_matches(';');
        if marks != BTreeSet::from([own]) {
            self.faults.push(format!("not only {own}: {marks:?}"));
        }
        if whole.contains(KEY) {
            self.faults.push(format!("a key of a client, with {own}"));
        }
        let client = own.rsplit_once('-').map_or(own, |(client, _)| client);
        self.shared += usize::from(last.is_some_and(|last| last != client));
        client.to_owned()
    }
}

/// Responds as the request selects. `begun`: the connection carried other requests.
async fn respond(
    writer: &mut OwnedWriteHalf,
    body: &Value,
    auth: &str,
    begun: bool,
) -> std::io::Result<AfterResponse> {
    let mark = body["mark"].as_str().unwrap_or_default();
    let manner = body["manner"].as_str().unwrap_or_default();
    let text = content(body, auth);
    let streamed = body["stream"] == json!(true);
    let framed = framed(&text, mark, streamed, manner);
    match manner {
        "slowly" => {
            for part in framed.chunks(97) {
                writer.write_all(part).await?;
                tokio::task::yield_now().await;
            }
        }
        "after hints" => {
            let hints = format!("HTTP/1.1 103 Early Hints\r\nx-mark: {mark}\r\n\r\n");
            writer.write_all(hints.as_bytes()).await?;
            writer.write_all(&framed).await?;
        }
        "close within" | "reset within" => {
            writer.write_all(&framed[..framed.len() - 20]).await?;
            let reset = manner.starts_with("reset");
            return Ok(if reset {
                AfterResponse::Reset
            } else {
                AfterResponse::Close
            });
        }
        "die" if begun => return Ok(AfterResponse::Close),
        "corrupt" => writer.write_all(&framed.repeat(2)).await?,
        _ => writer.write_all(&framed).await?,
    }
    Ok(match manner {
        "and close" | "until close" => AfterResponse::Close,
        _ => AfterResponse::GoOn,
    })
}

/// The body of a response, marked at both ends.
fn content(body: &Value, auth: &str) -> String {
    let (mark, tokens) = (&body["mark"], &body["tokens"]);
    let usage = json!({"prompt_tokens": tokens, "completion_tokens": 1});
    if body["stream"] == json!(true) {
        let first = json!({"choices": [{}], "mark": mark, "auth": auth});
        let last = json!({"choices": [{}], "mark": mark, "usage": usage});
        return format!("data: {first}\n\ndata: {last}\n\ndata: [DONE]\n\n");
    }
    json!({"auth": auth, "choices": [], "mark": mark, "pad": body["pad"], "usage": usage})
        .to_string()
}

fn framed(text: &str, mark: &str, streamed: bool, manner: &str) -> Vec<u8> {
    let kind = if streamed {
        "text/event-stream"
    } else {
        "application/json"
    };
    let fields = format!("content-type: {kind}\r\nx-mark: {mark}\r\n");
    let length = text.len();
    match manner {
        "until close" => format!("HTTP/1.0 200 OK\r\n{fields}\r\n{text}"),
        "refuse" => format!("HTTP/1.1 502 X\r\n{fields}content-length: {length}\r\n\r\n{text}"),
        _ if streamed => format!(
            "HTTP/1.1 200 OK\r\n{fields}transfer-encoding: chunked\r\n\r\n\
{length:x}\r\n{text}\r\n0\r\n\r\n"
        ),
        _ => format!("HTTP/1.1 200 OK\r\n{fields}content-length: {length}\r\n\r\n{text}"),
    }
    .into_bytes()
}
