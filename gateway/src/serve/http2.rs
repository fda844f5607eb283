//! A client's HTTP/2 connection, on hyper, with the same interfaces and the same
//! behaviour as HTTP/1.1.

mod stall;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io::Cursor;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fastllm_wire::http1::fields::is_hop_by_hop;
use fastllm_wire::http1::{Framing, HeadWriter, Http1Error, Persistence};
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::connection::ConnectionTerms;
use super::{Service, date};
use crate::forward::{ForwardedResponse, StreamStep};
use crate::http::Head;
use crate::http::RequestContext;
use crate::http::local_response;
use crate::http::{BodySource, UnreadableBody};
use crate::pipeline::ClientResponse;
use crate::runtime::Deadline;
use crate::runtime::Socket;
use crate::runtime::Tasks;

/// The maximum number of concurrent requests of one connection.
const STREAMS: u32 = 256;

/// The maximum size of a request's header fields, in bytes.
const HEAD: u32 = 64 << 10;

/// The bytes of each response that are buffered while the client does not read.
const SEND_BUFFER: usize = 64 << 10;

/// How long a connection without a request stays open after a GOAWAY, for a
/// request that was sent before the GOAWAY arrived.
const LAST_REQUEST: Duration = Duration::from_millis(250);

/// Runs hyper's streams of a connection on the thread of the connection.
#[derive(Debug, Clone)]
struct StreamExecutor {
    /// Shutdown waits for streams like it waits for connections: each ends with
    /// its request log.
    all: Tasks,
    /// The streams of this connection.
    open: Tasks,
    /// The timeout for the client to receive a part of a response.
    send_timeout: Duration,
    /// The number of streams so far.
    begun: Arc<AtomicU64>,
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let stream = self
            .open
            .count(stall::until_stalled(stream, self.send_timeout));
        self.all.spawn_on(stream, &Handle::current());
    }
}

impl StreamExecutor {
    fn new(all: Tasks, send_timeout: Duration) -> Self {
        Self {
            all,
            open: Tasks::default(),
            send_timeout,
            begun: Arc::default(),
        }
    }

    /// Resolves once there was no stream for `head_timeout`; it may take up to
    /// twice as long.
    async fn idle(&self, head_timeout: Duration) {
        loop {
            let before = self.begun.load(Ordering::Relaxed);
            sleep(head_timeout).await;
            if self.is_idle_since(before) {
                return;
            }
        }
    }

    /// Resolves once there is no stream, and there was none for
    /// [`LAST_REQUEST`].
    async fn finished(&self) {
        loop {
            self.open.all_ended().await;
            let before = self.begun.load(Ordering::Relaxed);
            sleep(LAST_REQUEST).await;
            if self.is_idle_since(before) {
                return;
            }
        }
    }

    /// Whether no stream runs, and none has begun since there were `before`.
    fn is_idle_since(&self, before: u64) -> bool {
        self.open.len() == 0 && self.begun.load(Ordering::Relaxed) == before
    }
}

/// Serves a connection to its end. After `head_timeout` without a request, or
/// when the gateway shuts down, the running requests are the last ones: once they
/// have ended, the connection is closed, whether or not the client acknowledges
/// it. `inbox` contains the bytes that were already read.
pub(super) async fn serve(
    socket: Socket,
    inbox: Vec<u8>,
    service: Service,
    terms: ConnectionTerms,
) {
    let (reader, writer) = tokio::io::split(socket);
    let io = TokioIo::new(tokio::io::join(Cursor::new(inbox).chain(reader), writer));
    let service = Arc::new(service);
    let handle = service_fn(move |request: Request<Incoming>| {
        let service = Arc::clone(&service);
        async move {
            let (parts, body) = request.into_parts();
            match respond(&service, parts, body).await {
                Some(response) => Ok::<_, Infallible>(response),
                // The stream was reset; the result is not needed.
                None => pending().await,
            }
        }
    });
    let ConnectionTerms {
        head_timeout,
        send_timeout,
        closing,
        tasks,
    } = terms;
    let streams = StreamExecutor::new(tasks, send_timeout);
    let connection = http2::Builder::new(streams.clone())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(Some(Duration::from_mins(1)))
        .serve_connection(io, handle);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        () = closing.cancelled() => None,
        () = streams.idle(head_timeout) => None,
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            ended = connection => ended,
            () = streams.finished() => Ok(()),
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "a client connection ended");
    }
}

async fn respond(
    service: &Service,
    parts: Parts,
    body: Incoming,
) -> Option<Response<ResponseBody>> {
    let mut deadline = Deadline::default();
    let mut client = RequestStream(body);
    let response = match head(&parts).and_then(Head::read) {
        Ok(head) => {
            let context = RequestContext {
                client: &mut client,
                deadline: &mut deadline,
            };
            service.handle(&head, context).await?
        }
        Err(error) => ClientResponse::Local(Box::new(local_response::malformed(error))),
    };
    stall::note(stall::StreamProgress::Progressed);
    Some(match response {
        ClientResponse::Local(own) => dated(own.map(ResponseBody::Local)),
        ClientResponse::Forwarded(relay) => relayed(relay, deadline),
    })
}

/// The request head in the form of HTTP/1.1, which the handlers expect.
fn head(parts: &Parts) -> Result<Vec<u8>, Http1Error> {
    let mut bytes = Vec::with_capacity(1024);
    let target = parts.uri.path_and_query().map_or("/", |both| both.as_str());
    let mut head = HeadWriter::request(
        &mut bytes,
        parts.method.as_str().as_bytes(),
        target.as_bytes(),
    );
    if let Some(authority) = parts.uri.authority() {
        head.field(b"host", authority.as_str().as_bytes());
    }
    for (name, value) in &parts.headers {
        let name = name.as_str().as_bytes();
        // Framing belongs to HTTP/2; `host` is redundant if `:authority` is
        // present.
        let framing = name == b"content-length" || is_hop_by_hop(name) || name == b"expect";
        let named_twice = name == b"host" && parts.uri.authority().is_some();
        if !framing && !named_twice {
            head.field(name, value.as_bytes());
        }
    }
    head.end(Framing::None, Persistence::Keep)?;
    Ok(bytes)
}

fn relayed(relay: Box<ForwardedResponse>, deadline: Deadline) -> Response<ResponseBody> {
    let mut response = Response::new(());
    *response.status_mut() =
        StatusCode::from_u16(relay.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    for field in relay.fields() {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(field.name),
            HeaderValue::from_bytes(field.value),
        ) {
            response.headers_mut().append(name, value);
        }
    }
    dated(response.map(|()| ResponseBody::Forwarded {
        relay,
        deadline,
        ended: false,
    }))
}

fn dated<B>(mut response: Response<B>) -> Response<B> {
    let date = date::with(HeaderValue::from_bytes);
    if let Ok(date) = date {
        let headers = response.headers_mut();
        headers.entry(http::header::DATE).or_insert(date);
    }
    response
}

/// The client of one stream. A reset drops the request's future.
struct RequestStream(Incoming);

impl BodySource for RequestStream {
    fn content_length(&self) -> Option<u64> {
        self.0.size_hint().exact()
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut BytesMut,
    ) -> Poll<Result<bool, UnreadableBody>> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    body.extend_from_slice(data);
                }
                Ok(false)
            }
            Some(Err(_)) => Err(UnreadableBody),
            None => Ok(true),
        })
    }

    fn poll_disconnected(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// The body of a response.
enum ResponseBody {
    Local(Bytes),
    Forwarded {
        relay: Box<ForwardedResponse>,
        deadline: Deadline,
        ended: bool,
    },
}

/// The response was aborted: the client's stream is reset.
#[derive(Debug, thiserror::Error)]
#[error("the upstream aborted its response")]
struct AbortedResponse;

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = AbortedResponse;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AbortedResponse>>> {
        let polled = self.get_mut().poll_next(cx);
        stall::note(match polled {
            Poll::Ready(_) => stall::StreamProgress::Progressed,
            Poll::Pending => stall::StreamProgress::Waiting,
        });
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Local(bytes) => bytes.is_empty(),
            Self::Forwarded { ended, .. } => *ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Local(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Forwarded { .. } => SizeHint::default(),
        }
    }
}

impl ResponseBody {
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AbortedResponse>>> {
        match self {
            Self::Local(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Forwarded { ended: true, .. } => Poll::Ready(None),
            Self::Forwarded {
                relay,
                deadline,
                ended,
            } => {
                let mut out = Vec::new();
                loop {
                    let step = ready!(relay.poll_pump(cx, deadline, &mut out));
                    *ended = step != StreamStep::More;
                    if step == StreamStep::Aborted {
                        return Poll::Ready(Some(Err(AbortedResponse)));
                    }
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))));
                    }
                    if *ended {
                        return Poll::Ready(None);
                    }
                }
            }
        }
    }
}
