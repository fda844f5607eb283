use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::http::{Message, Reader};
use super::soon;

/// Opened by the test to let an upstream continue.
pub(crate) type Barrier = CancellationToken;

/// What an upstream does after it has read a request.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Writes bytes at once.
    Send(Vec<u8>),
    /// Writes bytes one by one, each in its own segment.
    Trickle(Vec<u8>),
    /// Waits until the test opens the barrier.
    Wait(Barrier),
    /// Waits until the gateway closes the connection.
    UntilDisconnect,
    /// Writes bytes repeatedly until this many are written, or the gateway
    /// closes the connection.
    Flood { part: Vec<u8>, most: usize },
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
}

/// What an upstream has received.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedRequests {
    /// Requests other than probes.
    pub(crate) requests: Vec<Message>,
    /// Probes.
    pub(crate) probes: usize,
    /// Connections that carried requests other than probes.
    pub(crate) connections: usize,
    /// Connections that the gateway closed while a script was waiting.
    pub(crate) disconnects: usize,
    /// Bytes of floods that the sockets accepted.
    pub(crate) flooded: usize,
}

/// A raw TCP server that runs one script per request; the last script is repeated.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<watch::Sender<ReceivedRequests>>,
    probe_status: Arc<Mutex<&'static str>>,
    _tasks: JoinSet<()>,
}

/// How much of a request is read before its script starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadBeforeScript {
    Whole,
    Head,
}

#[derive(Clone)]
struct Player {
    read_before: ReadBeforeScript,
    scripts: Arc<Mutex<VecDeque<Vec<Step>>>>,
    seen: Arc<watch::Sender<ReceivedRequests>>,
    probe_status: Arc<Mutex<&'static str>>,
}

impl Upstream {
    pub(crate) async fn start(scripts: impl IntoIterator<Item = Vec<Step>>) -> Self {
        Self::start_as(ReadBeforeScript::Whole, scripts).await
    }

    /// An upstream whose scripts start as soon as the head of a request has been
    /// read. The body is read after the script and discarded.
    pub(crate) async fn start_hasty(scripts: impl IntoIterator<Item = Vec<Step>>) -> Self {
        Self::start_as(ReadBeforeScript::Head, scripts).await
    }

    async fn start_as(
        read_before: ReadBeforeScript,
        scripts: impl IntoIterator<Item = Vec<Step>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let play = Player {
            read_before,
            scripts: Arc::new(Mutex::new(scripts.into_iter().collect())),
            seen: Arc::new(watch::Sender::new(ReceivedRequests::default())),
            probe_status: Arc::new(Mutex::new("200 OK")),
        };
        let (seen, probe_status) = (Arc::clone(&play.seen), Arc::clone(&play.probe_status));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(connection(stream, play.clone()));
            }
        });
        Self {
            address,
            seen,
            probe_status,
            _tasks: tasks,
        }
    }

    pub(crate) fn api_base(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn seen(&self) -> ReceivedRequests {
        self.seen.borrow().clone()
    }

    /// Sets the status of probe responses from now on.
    pub(crate) fn set_probe_status(&self, status: &'static str) {
        *self.probe_status.lock() = status;
    }

    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&ReceivedRequests) -> bool) {
        let mut seen = self.seen.subscribe();
        let waited = soon(what, seen.wait_for(condition)).await;
        drop(waited.unwrap());
    }

    /// The only request that was received.
    pub(crate) fn request(&self) -> Message {
        let mut requests = self.seen().requests;
        assert_eq!(requests.len(), 1);
        requests.remove(0)
    }
}

async fn connection(stream: TcpStream, play: Player) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = Reader::new(reader);
    let mut carried = false;
    while let Some(head) = reader.head().await {
        if head.starts_with("GET ") {
            play.seen.send_modify(|seen| seen.probes += 1);
            let status = *play.probe_status.lock();
            let response = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            if writer.write_all(response.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let body = match play.read_before {
            ReadBeforeScript::Whole => {
                let (body, true) = reader.body(&head).await else {
                    return;
                };
                body
            }
            ReadBeforeScript::Head => Vec::new(),
        };
        let first = !std::mem::replace(&mut carried, true);
        let script = play.next_script();
        let request = Message { head, body };
        play.seen.send_modify(|seen| {
            seen.connections += usize::from(first);
            seen.requests.push(request.clone());
        });
        for step in script {
            match play.perform(step, &mut reader, &mut writer).await {
                AfterScript::GoOn => {}
                AfterScript::Stop => return,
                AfterScript::HungUp => {
                    play.seen.send_modify(|seen| seen.disconnects += 1);
                    return;
                }
                AfterScript::Reset => {
                    let linger = Some(std::time::Duration::ZERO);
                    let socket = socket2::SockRef::from(writer.as_ref());
                    socket.set_linger(linger).unwrap();
                    // Dropping the stream would send a FIN first.
                    writer.forget();
                    return;
                }
            }
        }
        if play.read_before == ReadBeforeScript::Head && !reader.body(&request.head).await.1 {
            return;
        }
    }
}

impl Player {
    fn next_script(&self) -> Vec<Step> {
        let mut scripts = self.scripts.lock();
        match scripts.len() {
            0 => vec![Step::Close],
            1 => scripts[0].clone(),
            _ => scripts.pop_front().unwrap(),
        }
    }

    async fn perform(
        &self,
        step: Step,
        reader: &mut Reader<OwnedReadHalf>,
        writer: &mut OwnedWriteHalf,
    ) -> AfterScript {
        match step {
            Step::Send(bytes) => {
                if writer.write_all(&bytes).await.is_err() {
                    return AfterScript::Stop;
                }
            }
            Step::Trickle(bytes) => {
                for byte in bytes {
                    if writer.write_all(&[byte]).await.is_err() {
                        return AfterScript::Stop;
                    }
                    tokio::task::yield_now().await;
                }
            }
            Step::Wait(barrier) => barrier.cancelled().await,
            Step::UntilDisconnect => {
                while reader.more().await {}
                return AfterScript::HungUp;
            }
            Step::Flood { part, most } => {
                let mut written = 0;
                while written < most {
                    if writer.write_all(&part).await.is_err() {
                        return AfterScript::HungUp;
                    }
                    written += part.len();
                    self.seen.send_modify(|seen| seen.flooded += part.len());
                }
            }
            Step::Close => return AfterScript::Stop,
            Step::Reset => return AfterScript::Reset,
        }
        AfterScript::GoOn
    }
}

/// How a script continues after a step.
enum AfterScript {
    GoOn,
    Stop,
    HungUp,
    Reset,
}

/// Bytes as a script of one step.
pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Vec<Step> {
    vec![Step::Send(bytes.as_ref().to_vec())]
}

/// A JSON response.
pub(crate) fn json_response(status: &str, body: &str) -> Vec<Step> {
    raw(format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
}

/// The bytes of a chunked stream of events, complete or up to its last chunk.
pub(crate) fn events<P: AsRef<[u8]>>(parts: &[P], complete: bool) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
transfer-encoding: chunked\r\n\r\n"
        .to_vec();
    for part in parts {
        let part = part.as_ref();
        bytes.extend(format!("{:x}\r\n", part.len()).into_bytes());
        bytes.extend(part);
        bytes.extend(b"\r\n");
    }
    if complete {
        bytes.extend(b"0\r\n\r\n");
    }
    bytes
}
