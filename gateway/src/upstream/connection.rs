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

/// What is read at once of an answer whose head has not come: it is copied.
const FIRST_READ: usize = 16 << 10;

/// What an idle connection may keep of its memory, in bytes.
const KEPT: usize = 16 << 10;

/// An open connection to an upstream. Dropping it closes it at once, which is
/// how a client that leaves stops the upstream.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    _counted: OpenConnection,
    socket: Socket,
    codec: Client,
    head: ResponseHead,
    /// The head of the answer and what came with it of its body.
    inbox: Vec<u8>,
    /// How much of the inbox is done with.
    taken: usize,
    /// It has carried an answer before.
    used: bool,
    /// More came than the answer.
    surplus: bool,
}

/// A request on its way.
pub(crate) trait RequestWriter {
    /// Writes what can be written. Ready when all of it was.
    fn poll_send(&mut self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoResponse {
    /// The connection was closed while it was idle.
    Closed,
    /// It broke, or what came is no HTTP. The text holds no address.
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
    /// A new one; `counted` is held for as long as it is open.
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
        }
    }

    /// Sends a request, notes when all of it has left, and waits for the head of
    /// its answer.
    pub(crate) async fn exchange(
        &mut self,
        request: &mut impl RequestWriter,
        sent: &AwaitingResponse,
    ) -> Result<(), NoResponse> {
        self.codec
            .begin(false)
            .map_err(|error| NoResponse::Broken(error.to_string()))?;
        poll_fn(|cx| self.poll_exchange(cx, request, sent)).await
    }

    /// An answer may come before all of the request is sent; then the rest of
    /// it never is.
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
                    Ok(ReceivedHead::Answer(len)) => {
                        self.taken = len;
                        return Poll::Ready(Ok(()));
                    }
                    Ok(ReceivedHead::Interim(len)) => {
                        self.inbox.drain(..len);
                        continue;
                    }
                    Ok(ReceivedHead::Nothing) => {}
                    Err(error) => return Poll::Ready(Err(NoResponse::Broken(error.to_string()))),
                }
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) => return Poll::Ready(Err(self.ended())),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(self.broken(&error))),
            }
        }
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

    /// A peer that closes an idle connection does so with a FIN or a reset,
    /// before it has read the request.
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

    /// The status of the answer that has come.
    pub(crate) fn status(&self) -> u16 {
        self.head.status()
    }

    /// The head of the answer that has come.
    pub(crate) fn response_head(&self) -> Response<'_> {
        self.head.on(&self.inbox)
    }

    /// Whether it says itself where its body ends.
    pub(crate) fn is_delimited(&self) -> bool {
        matches!(self.head.framing(), Framing::Length(_) | Framing::Chunked)
    }

    /// How many bytes its body has, where it says so.
    pub(crate) fn length(&self) -> Option<u64> {
        match self.head.framing() {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked | Framing::UntilClose => None,
        }
    }

    /// Gives `sink` what one read brings of the body; true at its end. The
    /// reason of a break-off holds no address. Trailers are left out.
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

    /// Makes it ready for another request; false where there can be none.
    pub(crate) fn settle(&mut self) -> bool {
        // An answer without a body may never have been asked for it.
        let unread = self.taken < self.inbox.len();
        if self.surplus || unread || !self.codec.is_reusable() {
            return false;
        }
        self.inbox.clear();
        self.inbox.shrink_to(KEPT);
        self.taken = 0;
        self.used = true;
        true
    }

    /// Whether nothing came since it was settled: an end, or bytes that answer
    /// nothing. Costs no system call unless something did.
    pub(crate) fn is_idle(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.socket.poll_read_some(&mut cx, &mut [0]).is_pending()
    }
}

/// Decodes all of `input` that is the body's.
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
