use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker, ready};

use fastllm_wire::http1::{
    Client, ClientEof, Framing, Http1Error, Limits, ReceivedHead, Response, ResponseHead,
};

use super::ExchangeError;
use super::awaiting_response::AwaitingResponse;
use crate::runtime::Socket;
use crate::runtime::buffers;
use crate::telemetry::OpenConnection;

/// The read size while the response head is incomplete: these bytes are copied.
const FIRST_READ: usize = 16 << 10;

/// How every response begins.
const BEGINNING: &[u8] = b"HTTP/";

/// The buffer memory that an idle connection may keep, in bytes.
const KEPT: usize = 16 << 10;

/// An open connection to an upstream. Dropping it closes it at once, which
/// aborts the upstream's work when a client disconnects.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    _counted: OpenConnection,
    socket: Socket,
    codec: Client,
    head: ResponseHead,
    /// The response head, and the part of the body that arrived with it.
    inbox: Vec<u8>,
    /// The number of consumed bytes of the inbox.
    taken: usize,
    /// The connection has carried a response before.
    used: bool,
    /// Bytes arrived after the end of the response.
    surplus: bool,
    /// An interim response to the current request arrived.
    interim: bool,
}

/// A request that is being sent.
pub(crate) trait RequestWriter {
    /// Writes as much as possible. Ready when everything is written.
    fn poll_send(&mut self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum NoResponse {
    /// The connection was closed while it was idle, or it carried bytes that
    /// belong to no response.
    Closed,
    /// The connection failed, or the response is not valid HTTP. Contains no
    /// address.
    Broken(String),
}

impl From<NoResponse> for ExchangeError {
    fn from(no_response: NoResponse) -> Self {
        match no_response {
            NoResponse::Closed => Self::Broken("closed".to_owned()),
            NoResponse::Broken(reason) => Self::Broken(reason),
        }
    }
}

impl UpstreamConnection {
    /// A new connection; `counted` is held while it is open.
    pub(crate) fn new(socket: Socket, counted: OpenConnection) -> Self {
        Self {
            _counted: counted,
            socket,
            codec: Client::new(Limits::default()),
            head: ResponseHead::default(),
            inbox: Vec::new(),
            taken: 0,
            used: false,
            surplus: false,
            interim: false,
        }
    }

    /// Sends a request, records when it was sent completely, and waits for the
    /// response head.
    pub(crate) async fn exchange(
        &mut self,
        request: &mut impl RequestWriter,
        sent: &AwaitingResponse,
    ) -> Result<(), NoResponse> {
        self.codec
            .begin(false)
            .map_err(|error| NoResponse::Broken(error.to_string()))?;
        self.interim = false;
        poll_fn(|cx| self.poll_exchange(cx, request, sent)).await
    }

    /// A response may arrive before the request is sent completely; then the
    /// rest of the request is not sent.
    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        request: &mut impl RequestWriter,
        sent: &AwaitingResponse,
    ) -> Poll<Result<(), NoResponse>> {
        let failure = match request.poll_send(&mut self.socket, cx) {
            Poll::Ready(Ok(())) => {
                self.codec.sent();
                sent.set();
                None
            }
            Poll::Ready(Err(error)) => Some(error),
            Poll::Pending => None,
        };
        match (self.poll_head(cx), failure) {
            (Poll::Pending, Some(error)) => Poll::Ready(Err(self.broken(&error))),
            (polled, _) => polled,
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NoResponse>> {
        loop {
            if !self.inbox.is_empty() {
                match self.codec.read_head(&self.inbox, &mut self.head) {
                    Ok(ReceivedHead::Response(len)) => {
                        self.taken = len;
                        return Poll::Ready(self.received());
                    }
                    Ok(ReceivedHead::Interim(len)) => {
                        self.inbox.drain(..len);
                        self.interim = true;
                        continue;
                    }
                    Ok(ReceivedHead::Nothing) => {}
                    Err(error) => return Poll::Ready(Err(self.unreadable(error))),
                }
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) => return Poll::Ready(Err(self.ended())),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(self.broken(&error))),
            }
        }
    }

    /// A 408 that closes a reused connection was sent when the connection had
    /// been idle for too long, before the request arrived.
    fn received(&self) -> Result<(), NoResponse> {
        let idle_timeout = self.head.status() == 408 && !self.head.keeps_alive();
        if self.used && !self.interim && idle_timeout {
            return Err(NoResponse::Closed);
        }
        Ok(())
    }

    /// Bytes on a reused connection that are not the beginning of a head are
    /// the rest of an earlier response.
    fn unreadable(&self, error: Http1Error) -> NoResponse {
        let begins = self.inbox.starts_with(BEGINNING);
        if self.used && !self.interim && !begins {
            tracing::debug!("an upstream sent bytes after its response");
            return NoResponse::Closed;
        }
        NoResponse::Broken(error.to_string())
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        buffers::with_read_buffer(|buffer| {
            let room = buffer.get_mut(..FIRST_READ).unwrap_or_default();
            let read = ready!(self.socket.poll_read_some(cx, room))?;
            self.inbox
                .extend_from_slice(room.get(..read).unwrap_or_default());
            Poll::Ready(Ok(read))
        })
    }

    fn ended(&mut self) -> NoResponse {
        let end = self.codec.eof(self.inbox.len());
        if self.used && end == ClientEof::Unanswered {
            NoResponse::Closed
        } else {
            NoResponse::Broken("closed".to_owned())
        }
    }

    /// A peer that closes an idle connection sends a FIN or a reset before it
    /// has read the request.
    fn broken(&self, error: &io::Error) -> NoResponse {
        let closed = matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        );
        if self.used && closed && self.inbox.is_empty() {
            NoResponse::Closed
        } else {
            NoResponse::Broken(error.kind().to_string())
        }
    }

    /// The status of the current response.
    pub(crate) fn status(&self) -> u16 {
        self.head.status()
    }

    /// The head of the current response.
    pub(crate) fn response_head(&self) -> Response<'_> {
        self.head.on(&self.inbox)
    }

    /// Whether the response body has a defined end.
    pub(crate) fn is_delimited(&self) -> bool {
        matches!(self.head.framing(), Framing::Length(_) | Framing::Chunked)
    }

    /// The length of the response body, if it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self.head.framing() {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked | Framing::UntilClose => None,
        }
    }

    /// Passes the body bytes of one read to `sink`; true at the end of the body.
    /// Errors contain no address. Trailers are omitted.
    pub(crate) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Poll<Result<bool, String>> {
        if self.taken < self.inbox.len() || self.codec.has_response() {
            let waiting = self.inbox.get(self.taken..).unwrap_or_default();
            let (consumed, end) = decode(&mut self.codec, waiting, sink).map_err(text)?;
            self.taken += consumed;
            self.surplus = self.taken < self.inbox.len();
            return Poll::Ready(Ok(end));
        }
        buffers::with_read_buffer(|buffer| {
            let read = match ready!(self.socket.poll_read_some(cx, buffer)) {
                Ok(read) => buffer.get(..read).unwrap_or_default(),
                Err(error) => return Poll::Ready(Err(error.kind().to_string())),
            };
            if read.is_empty() {
                return Poll::Ready(match self.codec.eof(0) {
                    ClientEof::Complete => Ok(true),
                    _ => Err("closed".to_owned()),
                });
            }
            let (consumed, end) = decode(&mut self.codec, read, sink).map_err(text)?;
            self.surplus = consumed < read.len();
            Poll::Ready(Ok(end))
        })
    }

    /// Prepares the connection for another request; false if it cannot be
    /// reused.
    pub(crate) fn settle(&mut self) -> bool {
        // A response without a body may be to a request that expects none.
        let unread = self.taken < self.inbox.len();
        if self.surplus || unread {
            tracing::debug!("an upstream sent bytes after its response");
            return false;
        }
        if !self.codec.is_reusable() {
            return false;
        }
        self.inbox.clear();
        self.inbox.shrink_to(KEPT);
        self.taken = 0;
        self.used = true;
        true
    }

    /// Whether the peer has sent nothing since the last response, neither an end
    /// nor bytes. A response that is there before its request belongs to another
    /// one, so this does not rely on the events that the runtime has processed.
    /// Costs one system call.
    pub(crate) fn is_idle(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.socket.poll_read_some(&mut cx, &mut [0]).is_pending() && !self.socket.has_input()
    }
}

/// Decodes the part of `input` that belongs to the body.
fn decode(
    codec: &mut Client,
    input: &[u8],
    sink: &mut dyn FnMut(&[u8]),
) -> Result<(usize, bool), Http1Error> {
    let mut consumed = 0;
    loop {
        let rest = input.get(consumed..).unwrap_or_default();
        let part = codec.read_body(rest)?;
        let data = rest.get(part.data).unwrap_or_default();
        if !data.is_empty() {
            sink(data);
        }
        consumed += part.consumed;
        if part.end || part.consumed == 0 {
            return Ok((consumed, part.end));
        }
    }
}

fn text(error: Http1Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::UpstreamConnection;
    use crate::runtime::Socket;
    use crate::telemetry::Metrics;

    #[tokio::test]
    async fn bytes_that_the_runtime_has_not_noticed_are_detected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let counted = metrics.upstream_connected();
        let mut connection = UpstreamConnection::new(Socket::Plain(stream), counted);
        // Writable, so that the first events of the socket are processed.
        tokio::task::yield_now().await;
        assert!(connection.is_idle());
        // Nothing is awaited between the write and the check.
        peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
        assert!(!connection.is_idle());
    }
}
