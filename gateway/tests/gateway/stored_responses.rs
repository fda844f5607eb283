//! Requests that continue a response or a conversation which a backend stores.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fastllm_contract::{ModelName, PolicyKind};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{
    Control, KEY, Options, Reader, Reply, SnapshotContent, TestGateway, content, post, snapshot,
};

/// How a backend responds to an ID that it does not store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotFound {
    /// Like `OpenAI`.
    Status400,
    /// Like vLLM.
    Status404,
}

/// A backend that stores its responses, and continues only those.
#[derive(Debug)]
struct StatefulBackend {
    address: SocketAddr,
    state: Arc<BackendLog>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct BackendLog {
    name: String,
    not_found: NotFound,
    stored: Mutex<HashSet<String>>,
    made: AtomicUsize,
    /// Requests for IDs that it does not store.
    unknown: AtomicUsize,
    /// Requests are refused with 503.
    down: AtomicBool,
}

impl StatefulBackend {
    async fn start(name: &str, not_found: NotFound) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(BackendLog {
            name: name.to_owned(),
            not_found,
            stored: Mutex::default(),
            made: AtomicUsize::new(0),
            unknown: AtomicUsize::new(0),
            down: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self {
            address,
            state,
            _tasks: tasks,
        }
    }

    fn unknown(&self) -> usize {
        self.state.unknown.load(Ordering::Relaxed)
    }

    fn made(&self) -> usize {
        self.state.made.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, state: Arc<BackendLog>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = Reader::new(reader);
    while let Some(message) = reader.message().await {
        let response = if message.head.starts_with("GET ") {
            whole("200 OK", &json!({}))
        } else {
            state.respond(&serde_json::from_slice(&message.body).unwrap())
        };
        if writer.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn whole(status: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl BackendLog {
    fn respond(&self, request: &Value) -> String {
        if self.down.load(Ordering::Relaxed) {
            return whole("503 X", &json!({"error": {"message": "down"}}));
        }
        let previous = request["previous_response_id"].as_str();
        let conversation = request["conversation"]["id"]
            .as_str()
            .or(request["conversation"].as_str());
        let mut stored = self.stored.lock();
        for (kind, id) in [
            ("Previous response", previous),
            ("Conversation", conversation),
        ] {
            if let Some(id) = id.filter(|id| !stored.contains(*id)) {
                self.unknown.fetch_add(1, Ordering::Relaxed);
                return self.unknown_id(kind, id);
            }
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let id = format!("resp_{}_{number}", self.name);
        stored.insert(id.clone());
        let response = format!(
            "{{\"id\":\"{id}\",\"object\":\"response\",\"status\":\"completed\",\
             \"usage\":{{\"input_tokens\":1,\"output_tokens\":1}}}}"
        );
        if request["stream"] != json!(true) {
            return format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n\
                 {response}",
                response.len()
            );
        }
        let chunk = |name: &str| {
            let event =
                format!("event: {name}\ndata: {{\"type\":\"{name}\",\"response\":{response}}}\n\n");
            format!("{:x}\r\n{event}\r\n", event.len())
        };
        let events = ["response.created", "response.completed"]
            .map(chunk)
            .concat();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
             transfer-encoding: chunked\r\n\r\n{events}0\r\n\r\n"
        )
    }

    fn unknown_id(&self, kind: &str, id: &str) -> String {
        match self.not_found {
            NotFound::Status400 => whole(
                "400 X",
                &json!({"error": {
                    "message": format!("{kind} with id '{id}' not found."),
                    "type": "invalid_request_error",
                    "param": "previous_response_id",
                    "code": "previous_response_not_found",
                }}),
            ),
            NotFound::Status404 => whole(
                "404 X",
                &json!({"error": {
                    "message": format!("Response with id '{id}' not found."),
                    "type": "NotFoundError",
                    "param": null,
                    "code": 404,
                }}),
            ),
        }
    }
}

/// The model `small` on these backends, in turn.
fn pool(backends: &[StatefulBackend]) -> SnapshotContent {
    let addresses: Vec<_> = backends
        .iter()
        .map(|backend| format!("http://{}/v1", backend.address))
        .collect();
    let mut content = content(&addresses);
    content.models[2].policy = Some(PolicyKind::RoundRobin);
    content
}

async fn backends(names: &[&str], not_found: NotFound) -> Vec<StatefulBackend> {
    let mut backends = Vec::new();
    for name in names {
        backends.push(StatefulBackend::start(name, not_found).await);
    }
    backends
}

async fn send(gateway: &TestGateway, body: &Value) -> Reply {
    let headers = format!("authorization: Bearer {KEY}\r\n");
    let request = post("/v1/responses", &headers, &body.to_string());
    gateway.send(&request).await
}

/// The ID of a response, whole or streamed.
fn id(reply: &Reply) -> String {
    let text = reply.text();
    assert_eq!(reply.status, 200, "{text}");
    let (_, rest) = text.split_once("\"id\":\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn turn(previous: Option<&str>, stream: bool) -> Value {
    json!({"model": "small", "input": "hi", "stream": stream, "previous_response_id": previous})
}

/// The backend that made a response.
fn maker(id: &str) -> &str {
    id.split('_').nth(1).unwrap()
}

#[tokio::test]
async fn each_turn_goes_to_the_backend_that_made_the_previous_response() {
    let backends = backends(&["a", "b", "c"], NotFound::Status404).await;
    let gateway = TestGateway::serving(&pool(&backends), Options::default()).await;
    for stream in [false, true] {
        let mut last: Vec<String> = Vec::new();
        // Not a multiple of the backends: taking turns would hit another one.
        for _ in 0..5 {
            last.push(id(&send(&gateway, &turn(None, stream)).await));
        }
        for round in 0..5 {
            for previous in &mut last {
                let streamed = stream ^ (round % 2 == 1);
                let next = id(&send(&gateway, &turn(Some(previous), streamed)).await);
                assert_eq!(maker(&next), maker(previous));
                *previous = next;
            }
        }
    }
    assert!(backends.iter().all(|backend| backend.unknown() == 0));
    assert!(backends.iter().all(|backend| backend.made() > 0));
}

#[tokio::test]
async fn another_gateway_finds_the_backend() {
    for not_found in [NotFound::Status400, NotFound::Status404] {
        let backends = backends(&["a", "b", "c"], not_found).await;
        let one = TestGateway::serving(&pool(&backends), Options::default()).await;
        let control = Control::start(snapshot(&pool(&backends))).await;
        let other = TestGateway::with_control(control, Options::default());
        other.until_ready().await;
        let gateways = [&one, &other];
        let mut last = id(&send(&one, &turn(None, false)).await);
        for round in 1..12 {
            let gateway = gateways[round % 2];
            let next = id(&send(gateway, &turn(Some(&last), round % 3 == 0)).await);
            assert_eq!(maker(&next), maker(&last));
            last = next;
        }
        // Repeated on the same gateway, the owner is known.
        let before: usize = backends.iter().map(StatefulBackend::unknown).sum();
        for gateway in gateways {
            send(gateway, &turn(Some(&last), false)).await;
        }
        let found: usize = backends.iter().map(StatefulBackend::unknown).sum();
        for _ in 0..3 {
            for gateway in gateways {
                assert_eq!(send(gateway, &turn(Some(&last), false)).await.status, 200);
            }
        }
        let after: usize = backends.iter().map(StatefulBackend::unknown).sum();
        assert!(found - before <= 2);
        assert_eq!(after, found);
        // An unknown ID is no failure of a backend, and is not one of the client.
        for gateway in gateways {
            for backend in &backends {
                let api_base = format!("http://{}/v1", backend.address);
                let errors = format!("fastllm_backend_errors_total{{api_base=\"{api_base}\"}}");
                assert!(gateway.metric(&errors).await < 0.5);
            }
        }
        let events = other.finish().await;
        assert!(
            events.iter().all(|event| event.status == Some(200)),
            "{events:?}"
        );
    }
}

#[tokio::test]
async fn an_id_that_no_backend_stores_is_the_upstreams_error() {
    for (not_found, status) in [(NotFound::Status400, 400), (NotFound::Status404, 404)] {
        let backends = backends(&["a", "b"], not_found).await;
        let gateway = TestGateway::serving(&pool(&backends), Options::default()).await;
        for round in 1..=20 {
            let reply = send(&gateway, &turn(Some("resp_z_7"), false)).await;
            assert_eq!(reply.status, status);
            assert!(reply.text().contains("resp_z_7"), "{}", reply.text());
            // Each backend was asked once.
            assert!(backends.iter().all(|backend| backend.unknown() == round));
        }
        // No backend is ejected because of it.
        assert_eq!(send(&gateway, &turn(None, false)).await.status, 200);
        assert_eq!(send(&gateway, &turn(None, false)).await.status, 200);
        assert!(backends.iter().all(|backend| backend.made() == 1));
    }
}

#[tokio::test]
async fn a_conversation_stays_where_it_is() {
    let backends = backends(&["a", "b", "c"], NotFound::Status400).await;
    let gateway = TestGateway::serving(&pool(&backends), Options::default()).await;
    let owner = &backends[2];
    owner.state.stored.lock().insert("conv_1".to_owned());
    for conversation in [json!("conv_1"), json!({"id": "conv_1"})] {
        for _ in 0..4 {
            let body = json!({"model": "small", "input": "hi", "conversation": conversation});
            assert_eq!(maker(&id(&send(&gateway, &body).await)), "c");
        }
    }
    let unknown: usize = backends.iter().map(StatefulBackend::unknown).sum();
    assert!(unknown <= 2, "{unknown}");
}

#[tokio::test]
async fn while_the_owner_fails_the_client_is_not_told_that_the_response_is_gone() {
    let backends = backends(&["a", "b"], NotFound::Status404).await;
    let flags = Options::flags(&["--max-retries=0"]);
    let gateway = TestGateway::serving(&pool(&backends), flags).await;
    let first = id(&send(&gateway, &turn(None, false)).await);
    let owner = backends
        .iter()
        .find(|backend| backend.state.name == maker(&first))
        .unwrap();
    owner.state.down.store(true, Ordering::Relaxed);
    // Before and after it is ejected.
    for _ in 0..10 {
        let reply = send(&gateway, &turn(Some(&first), false)).await;
        assert_eq!(reply.status, 503, "{}", reply.text());
    }
    owner.state.down.store(false, Ordering::Relaxed);
    let next = id(&send(&gateway, &turn(Some(&first), false)).await);
    assert_eq!(maker(&next), maker(&first));
}

#[tokio::test]
async fn a_fallback_that_made_a_response_continues_it_only_with_a_grant() {
    let backends = backends(&["a", "b"], NotFound::Status404).await;
    let mut content = pool(&backends);
    // `small` is on the first backend, `large` on the second.
    content.models[1].backends = content.models[2].backends.split_off(1);
    content.fallback = ModelName::new("large").ok();
    let gateway = TestGateway::serving(&content, Options::default()).await;
    backends[0].state.down.store(true, Ordering::Relaxed);
    let first = id(&send(&gateway, &turn(None, false)).await);
    assert_eq!(maker(&first), "b");
    backends[0].state.down.store(false, Ordering::Relaxed);
    let next = id(&send(&gateway, &turn(Some(&first), false)).await);
    assert_eq!(maker(&next), "b");

    content.principals[0]
        .allowed_models
        .retain(|model| model.as_str() == "small");
    let gateway = TestGateway::serving(&content, Options::default()).await;
    let reply = send(&gateway, &turn(Some(&next), false)).await;
    assert_eq!(reply.status, 404);
    assert_eq!(backends[1].made(), 2);
}
