use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::http::Message;
use super::{Reader, soon};

/// An OTLP collector over HTTP that keeps the requests that it receives.
#[derive(Debug)]
pub(crate) struct Collector {
    url: String,
    posts: Arc<Mutex<Vec<Message>>>,
    _running: JoinSet<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::with_status(200).await
    }

    /// A collector that always responds with this status.
    pub(crate) async fn with_status(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let posts = Arc::<Mutex<Vec<Message>>>::default();
        let kept = Arc::clone(&posts);
        let mut running = JoinSet::new();
        running.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (read, mut write) = stream.into_split();
                let mut reader = Reader::new(read);
                while let Some(post) = reader.message().await {
                    kept.lock().push(post);
                    let response = format!("HTTP/1.1 {status} OK\r\ncontent-length: 0\r\n\r\n");
                    write.write_all(response.as_bytes()).await.unwrap();
                }
            }
        });
        Self {
            url,
            posts,
            _running: running,
        }
    }

    /// A collector over gRPC.
    pub(crate) async fn called() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let posts = Arc::<Mutex<Vec<Message>>>::default();
        let kept = Arc::clone(&posts);
        let mut running = JoinSet::new();
        running.spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut calls = h2::server::handshake(stream).await.unwrap();
            let mut responses = JoinSet::new();
            while let Some(Ok((request, respond))) = calls.accept().await {
                responses.spawn(respond_to_call(request, respond, Arc::clone(&kept)));
            }
        });
        Self {
            url,
            posts,
            _running: running,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn posts(&self) -> Vec<Message> {
        self.posts.lock().clone()
    }

    pub(crate) fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let decode = |post: &Message| ExportTraceServiceRequest::decode(&*post.body).unwrap();
        self.posts().iter().map(decode).collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        self.requests()
            .into_iter()
            .flat_map(|request| request.resource_spans)
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans)
            .collect()
    }

    /// Waits until this many spans have arrived.
    pub(crate) async fn wait_for(&self, count: usize) -> Vec<Span> {
        soon("the spans", async {
            while self.spans().len() < count {
                tokio::task::yield_now().await;
            }
        })
        .await;
        self.spans()
    }
}

/// Reads the message of a call and responds with success.
async fn respond_to_call(
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    kept: Arc<Mutex<Vec<Message>>>,
) {
    let (head, mut body) = request.into_parts();
    let mut framed = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        framed.extend(data);
    }
    let length = u32::from_be_bytes(framed[1..5].try_into().unwrap());
    assert_eq!((framed[0], length as usize), (0, framed.len() - 5));
    let mut text = format!("{} {} HTTP/2\r\n", head.method, head.uri.path());
    for (name, value) in &head.headers {
        write!(text, "{name}: {}\r\n", value.to_str().unwrap()).unwrap();
    }
    kept.lock().push(Message {
        head: text,
        body: framed.split_off(5),
    });
    let response = http::Response::builder().header("content-type", "application/grpc");
    let mut stream = respond
        .send_response(response.body(()).unwrap(), false)
        .unwrap();
    stream
        .send_data(Bytes::from_static(&[0; 5]), false)
        .unwrap();
    let status = http::HeaderValue::from_static("0");
    let trailers = [(http::HeaderName::from_static("grpc-status"), status)];
    stream
        .send_trailers(trailers.into_iter().collect())
        .unwrap();
}

/// An attribute as text; empty if it is absent.
pub(crate) fn attribute(span: &Span, key: &str) -> String {
    let pair = span.attributes.iter().find(|pair| pair.key == key);
    match pair.and_then(|pair| pair.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        _ => String::new(),
    }
}
