//! No key, body or connection of one client is ever exposed to another, regardless
//! of the behaviour of clients and upstreams.
//!
//! The tests run random schedules, each from its own seed: clients with their own
//! keys send bodies that contain their own marks, sequentially or pipelined, and
//! leave at random times; the upstream echoes the mark of each request, and
//! aborts, closes, corrupts or resets its connections.

mod echo;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fastllm_contract::{ModelName, Principal, PrincipalId, UsageEvent};
use fastrand::Rng;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;

use crate::support::{Options, Reader, SnapshotContent, TestGateway, content, post, soon};
use echo::{Echo, MANNERS};

/// Number of schedules, each with its own seed.
const SCHEDULES: u64 = 240;

/// Total number of clients; each schedule uses some of them.
const CLIENTS: usize = 5;

/// Prefix of every mark.
const MARK: &str = "mark-";

/// Prefix of every client key.
const KEY: &str = "sk-canary-";

fn key(client: usize) -> String {
    format!("{KEY}{client}-key")
}

fn principal_of(client: usize) -> u64 {
    100 + client as u64
}

/// Adds the keys of the clients to the default key.
fn with_clients(address: String) -> SnapshotContent {
    let mut content = content(&[address]);
    for client in 0..CLIENTS {
        let id = principal_of(client);
        content.principals.push(Principal {
            team: None,
            limits: None,
            budget: None,
            models: Vec::new(),
            id: PrincipalId(id),
            name: format!("client {client}"),
            allow_all: false,
            allowed_models: vec![ModelName::new("small").unwrap()],
            roles: Vec::new(),
        });
        content.keys.push((key(client), id, None, false));
    }
    content
}

/// The tokens that responses to this principal report, which identify the
/// principal.
fn tokens_of(principal: u64) -> u64 {
    1000 + principal
}

/// A reader that keeps a copy of everything it reads.
#[derive(Debug)]
struct RecordingStream {
    inner: OwnedReadHalf,
    copy: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for RecordingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = &buffer.filled()[before..];
        self.copy.lock().extend_from_slice(read);
        Poll::Ready(Ok(()))
    }
}

/// One client in one schedule.
struct TrafficPlayer {
    rng: Rng,
    schedule: u64,
    client: usize,
    address: SocketAddr,
    requests: u64,
    answered: u64,
}

/// Totals of the clients: the maximum number of requests of each client, and the
/// number of complete responses of all clients.
#[derive(Debug, Default)]
struct PlayedRequest {
    requests: [u64; CLIENTS],
    answered: u64,
}

impl PlayedRequest {
    fn add(&mut self, other: &Self) {
        for (sum, requests) in self.requests.iter_mut().zip(other.requests) {
            *sum += requests;
        }
        self.answered += other.answered;
    }
}

/// A client connection.
struct PlayedConnection {
    reader: Reader<RecordingStream>,
    writer: OwnedWriteHalf,
    received: Arc<Mutex<Vec<u8>>>,
}

impl PlayedConnection {
    async fn open(address: SocketAddr) -> Self {
        let (inner, writer) = TcpStream::connect(address).await.unwrap().into_split();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let copy = Arc::clone(&received);
        Self {
            reader: Reader::new(RecordingStream { inner, copy }),
            writer,
            received,
        }
    }

    fn reset(self) {
        let socket = SockRef::from(self.writer.as_ref());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        self.writer.forget();
    }
}

impl TrafficPlayer {
    fn mark(&self, request: u64) -> String {
        format!("{MARK}{}-{}-{request};", self.schedule, self.client)
    }

    /// A request with marks in every part.
    fn request(&mut self) -> (Vec<u8>, String) {
        self.requests += 1;
        let mark = self.mark(self.requests);
        let stream = self.rng.bool();
        let manner = self.rng.choice(MANNERS).unwrap();
        let pad = mark.repeat(self.rng.usize(0..200));
        let tokens = tokens_of(principal_of(self.client));
        let body = format!(
            "{{\"model\":\"small\",\"stream\":{stream},\"manner\":\"{manner}\",\
\"mark\":\"{mark}\",\"tokens\":{tokens},\"pad\":\"{pad}\"}}"
        );
        let key = key(self.client);
        let headers = format!(
            "authorization: Bearer {key}\r\ncookie: session={key}\r\nx-own: {mark}\r\n\
x-request-id: {mark}\r\n"
        );
        (post("/v1/chat/completions", &headers, &body), mark)
    }

    /// Runs this client: some connections, each with some requests.
    async fn play(mut self) -> PlayedRequest {
        for _ in 0..self.rng.u32(1..=3) {
            let connection = PlayedConnection::open(self.address).await;
            let received = Arc::clone(&connection.received);
            self.converse(connection).await;
            self.check(&received.lock());
        }
        let mut played = PlayedRequest {
            answered: self.answered,
            ..PlayedRequest::default()
        };
        played.requests[self.client] = self.requests;
        played
    }

    async fn converse(&mut self, mut connection: PlayedConnection) {
        for _ in 0..self.rng.u32(1..=3) {
            let pipelined = self.rng.usize(1..=3);
            let mut bytes = Vec::new();
            let mut marks = Vec::new();
            for _ in 0..pipelined {
                let (request, mark) = self.request();
                bytes.extend(request);
                marks.push(mark);
            }
            if self.rng.u8(0..8) == 0 {
                bytes.truncate(self.rng.usize(0..bytes.len()));
                let _closed = connection.writer.write_all(&bytes).await;
                return self.leave(connection);
            }
            if connection.writer.write_all(&bytes).await.is_err() {
                return;
            }
            for mark in marks {
                if self.rng.u8(0..8) == 0 {
                    return self.leave_within(connection).await;
                }
                if !self.answered(&mut connection.reader, &mark).await {
                    return;
                }
            }
        }
        self.leave(connection);
    }

    /// Reads the response to the request with this mark. Returns whether the
    /// connection stays open.
    async fn answered(&mut self, reader: &mut Reader<RecordingStream>, mark: &str) -> bool {
        let seed = self.schedule;
        let Some(head) = soon("a response", reader.head()).await else {
            return false;
        };
        let (body, complete) = soon("its body", reader.body(&head)).await;
        let text = String::from_utf8_lossy(&body);
        if head.starts_with("HTTP/1.1 200 ") {
            if complete {
                self.answered += 1;
                assert!(text.contains(mark), "schedule {seed}: not {mark}: {text}");
            }
            let auth = "\"auth\":\"Bearer credential-1\"";
            let ok = !text.contains("\"auth\"") || text.contains(auth);
            assert!(ok, "schedule {seed}: {text}");
        } else {
            assert!(head.starts_with("HTTP/1.1 502 "), "schedule {seed}: {head}");
        }
        complete
    }

    async fn leave_within(&mut self, mut connection: PlayedConnection) {
        for _ in 0..self.rng.u8(0..3) {
            if soon("some bytes", connection.reader.some(100))
                .await
                .is_none()
            {
                return;
            }
        }
        self.leave(connection);
    }

    fn leave(&mut self, connection: PlayedConnection) {
        if self.rng.bool() {
            connection.reset();
        }
    }

    /// Checks that no received data belongs to another client or schedule.
    fn check(&self, received: &[u8]) {
        let text = String::from_utf8_lossy(received);
        let own = format!("{}-{}-", self.schedule, self.client);
        for (at, _) in text.match_indices(MARK) {
            let rest = &text[at + MARK.len()..];
            let cut = rest.len() < own.len();
            assert!(
                rest.starts_with(&own) || (cut && own.starts_with(rest)),
                "schedule {}, client {}: {rest}",
                self.schedule,
                self.client
            );
        }
        assert!(!text.contains(KEY), "schedule {}: a key", self.schedule);
    }
}

/// Runs a schedule.
async fn schedule(seed: u64, address: SocketAddr) -> PlayedRequest {
    let mut rng = Rng::with_seed(seed);
    let mut players = JoinSet::new();
    for client in 0..CLIENTS {
        let player = TrafficPlayer {
            rng: rng.fork(),
            schedule: seed,
            client,
            address,
            requests: 0,
            answered: 0,
        };
        if client < 2 || rng.bool() {
            players.spawn(player.play());
        }
    }
    let mut sum = PlayedRequest::default();
    while let Some(played) = players.join_next().await {
        sum.add(&played.unwrap());
    }
    sum
}

/// Checks that a usage event has the tokens of its principal.
fn check_account(event: &UsageEvent, accounts: &mut BTreeMap<u64, u64>) {
    let principal = event.principal_id.0;
    assert_eq!(event.key_id.unwrap().0, principal * 10);
    if event.refusal.is_none() && event.usage_reported {
        assert_eq!(event.prompt_tokens.0, tokens_of(principal), "{event:?}");
    }
    *accounts.entry(principal).or_default() += 1;
}

/// Runs all schedules, some concurrently, so that they share upstream
/// connections.
async fn play_all(address: SocketAddr) -> PlayedRequest {
    let mut sum = PlayedRequest::default();
    let mut running = JoinSet::new();
    for seed in 0..SCHEDULES {
        running.spawn(schedule(seed, address));
        if running.len() == 4 {
            sum.add(&running.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(played) = running.join_next().await {
        sum.add(&played.unwrap());
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_receives_data_of_another() {
    let echo = Echo::start().await;
    let content = with_clients(echo.api_base());
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let played = play_all(gateway.address).await;
    let mut accounts = BTreeMap::new();
    for event in gateway.finish().await {
        check_account(&event, &mut accounts);
    }
    for (client, requests) in played.requests.into_iter().enumerate() {
        let accounted = accounts[&principal_of(client)];
        assert!(
            accounted <= requests && accounted > 0,
            "{accounts:?} {played:?}"
        );
    }
    let heard = echo.heard();
    assert!(heard.faults.is_empty(), "{:#?}", heard.faults);
    // The test is only meaningful if connections were shared and responses compared.
    assert!(heard.shared > 100, "{} of {}", heard.shared, heard.requests);
    assert!(played.answered > 500, "{played:?}");
}
