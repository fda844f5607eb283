//! The state of a client's connection.

use super::encode::CONTINUE;
use super::{
    BodyDecoder, DecodedBody, Framing, Http1Error, Limits, Persistence, RequestHead, Version,
};

/// Maximum number of bytes of a request body that are discarded after the
/// response to keep the connection. For more, closing it is cheaper.
pub const DRAIN: u64 = 256 << 10;

/// One connection of a client. The caller reads and writes; this tracks what
/// may follow, and how many of the received bytes are consumed.
///
/// ```
/// use fastllm_wire::http1::{HeadWriter, Limits, NextAction, RequestHead, Server, BodySize};
///
/// let (mut server, mut head) = (Server::new(Limits::default()), RequestHead::default());
/// let input = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nhiGET / HTTP";
/// let mut at = server.read_head(input, &mut head).unwrap().unwrap();
/// let part = server.read_body(&input[at..]).unwrap();
/// assert!(part.end);
/// at += part.consumed;
///
/// let delivery = server.respond(200, BodySize::Known(2)).unwrap();
/// let mut out = Vec::new();
/// HeadWriter::response(&mut out, 200).end(delivery.framing, delivery.persistence).unwrap();
/// out.extend_from_slice(b"ok");
/// assert_eq!(server.responded(), NextAction::Head);
/// assert_eq!(server.read_head(&input[at..], &mut head), Ok(None));
/// ```
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
#[derive(Debug, Clone)]
pub struct Server {
    limits: Limits,
    reading: ServerReadState,
    writing: WriteState,
    version: Version,
    is_head: bool,
    expects: bool,
    keep: bool,
    last: bool,
    drain: u64,
}

#[derive(Debug, Clone)]
enum ServerReadState {
    /// Between requests, or within a head.
    Head,
    Body(BodyDecoder),
    /// The input was not HTTP; nothing more is read.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    /// No response has begun.
    Nothing,
    Responding,
    /// The response is complete; the request may not be.
    Responded,
    Closed,
}

/// The length of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodySize {
    /// This many bytes.
    Known(u64),
    /// Unknown.
    Unknown,
}

/// How a response has to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseFraming {
    /// For [`super::HeadWriter::end`]; with [`Framing::Chunked`] the body has
    /// to be sent in chunks.
    pub framing: Framing,
    /// For [`super::HeadWriter::end`].
    pub persistence: Persistence,
    /// Whether the body is sent.
    pub sends_body: bool,
    /// The `content-length` to send without a body.
    pub announces: Option<u64>,
}

/// The next action after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAction {
    /// Read the next request, of which bytes may already be received.
    Head,
    /// Pass the rest of the request body to [`Server::drain`].
    Drain,
    /// Close the connection.
    Close {
        /// The client may still be sending this request: unless its bytes are
        /// read for a while after the FIN, the kernel's reset could destroy the
        /// response. The same holds if the next request was already received.
        linger: bool,
    },
}

/// The result of draining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainedBody {
    /// Number of consumed bytes.
    pub consumed: usize,
    /// The next action.
    pub next: NextAction,
}

/// The meaning of an end of the client's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEof {
    /// No request was in progress.
    Idle,
    /// The client aborted a request.
    Truncated,
    /// The client disconnected before its response was complete.
    Gone,
}

impl Server {
    /// A new connection.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            reading: ServerReadState::Head,
            writing: WriteState::Nothing,
            version: Version::Http11,
            is_head: false,
            expects: false,
            keep: false,
            last: false,
            drain: 0,
        }
    }

    /// Reads the head of the next request from the beginning of `input`, into
    /// `head`. Returns its length in bytes; `None` if it is incomplete. After
    /// an error only [`Server::respond`] may be called.
    pub fn read_head(
        &mut self,
        input: &[u8],
        head: &mut RequestHead,
    ) -> Result<Option<usize>, Http1Error> {
        if !self.is_idle() {
            return Err(Http1Error::OutOfOrder);
        }
        let len = match head.parse(input, self.limits) {
            Ok(Some(len)) => len,
            Ok(None) => return Ok(None),
            Err(error) => {
                // Flags of the previous request do not apply to this one.
                self.is_head = false;
                self.version = Version::Http11;
                self.fail();
                return Err(error);
            }
        };
        self.reading = ServerReadState::Body(BodyDecoder::new(head.framing()));
        self.version = head.version();
        self.is_head = head.is_head();
        self.expects = head.expects_continue();
        self.keep = head.keeps_alive();
        Ok(Some(len))
    }

    /// Whether no request is in progress: at most a part of its head was
    /// received.
    pub fn is_idle(&self) -> bool {
        matches!(self.reading, ServerReadState::Head) && self.writing == WriteState::Nothing
    }

    /// Reads the body of the request. May be called again after its end.
    pub fn read_body(&mut self, input: &[u8]) -> Result<DecodedBody, Http1Error> {
        let ServerReadState::Body(body) = &mut self.reading else {
            return Err(Http1Error::OutOfOrder);
        };
        match body.decode(input) {
            Ok(decoded) => {
                // A client that does not wait needs no `100 Continue`.
                self.expects &= decoded.consumed == 0;
                Ok(decoded)
            }
            Err(error) => {
                self.fail();
                Err(error)
            }
        }
    }

    /// Whether the request is complete.
    pub fn has_request(&self) -> bool {
        matches!(&self.reading, ServerReadState::Body(body) if body.is_done())
    }

    /// The interim response that the client waits for, once, if it does. To be
    /// called when the body is needed and no byte of it was received.
    pub fn take_continue(&mut self) -> Option<&'static [u8]> {
        let due = self.expects && self.writing == WriteState::Nothing;
        (due && std::mem::take(&mut self.expects)).then_some(CONTINUE)
    }

    /// The current request, or the next one if there is none, is the last on
    /// this connection. If a response has already begun, its head stays the
    /// same and the connection is still closed after it.
    pub fn last_request(&mut self) {
        self.last = true;
    }

    /// Begins the final response, also to a request that could not be parsed.
    /// It may precede the body of the request.
    pub fn respond(&mut self, status: u16, size: BodySize) -> Result<ResponseFraming, Http1Error> {
        let begun = !matches!(self.reading, ServerReadState::Head);
        if self.writing != WriteState::Nothing || !begun || status < 200 {
            return Err(Http1Error::OutOfOrder);
        }
        let bodiless = matches!(status, 204 | 304);
        let framing = match size {
            _ if bodiless || self.is_head => Framing::None,
            BodySize::Known(length) => Framing::Length(length),
            BodySize::Unknown if self.version == Version::Http11 => Framing::Chunked,
            BodySize::Unknown => Framing::UntilClose,
        };
        self.keep =
            self.keep && !self.last && framing != Framing::UntilClose && self.drains_to_its_end();
        self.writing = WriteState::Responding;
        Ok(ResponseFraming {
            framing,
            persistence: match (self.keep, self.version) {
                (false, _) => Persistence::Close,
                (true, Version::Http10) => Persistence::KeepSaid,
                (true, Version::Http11) => Persistence::Keep,
            },
            sends_body: framing != Framing::None,
            announces: match size {
                BodySize::Known(length) if self.is_head && !bodiless => Some(length),
                _ => None,
            },
        })
    }

    /// Whether the rest of the request is worth reading. A client that got no
    /// `100 Continue` may or may not send its body.
    fn drains_to_its_end(&self) -> bool {
        let ServerReadState::Body(body) = &self.reading else {
            return false;
        };
        !self.expects && body.left().is_none_or(|left| left <= DRAIN)
    }

    /// The response was written completely.
    pub fn responded(&mut self) -> NextAction {
        if self.writing == WriteState::Responding {
            self.writing = WriteState::Responded;
            self.drain = DRAIN;
        }
        self.next()
    }

    /// Discards the rest of a request body, after its response.
    pub fn drain(&mut self, input: &[u8]) -> DrainedBody {
        let mut consumed = 0;
        while let ServerReadState::Body(body) = &mut self.reading
            && self.writing == WriteState::Responded
        {
            let rest = input.get(consumed..).unwrap_or_default();
            let Ok(decoded) = body.decode(rest) else {
                self.fail();
                break;
            };
            consumed += decoded.consumed;
            self.drain = self.drain.saturating_sub(decoded.consumed as u64);
            self.keep &= self.drain > 0;
            if decoded.end || decoded.consumed == 0 {
                break;
            }
        }
        DrainedBody {
            consumed,
            next: self.next(),
        }
    }

    fn next(&mut self) -> NextAction {
        let done = self.has_request();
        if self.writing != WriteState::Responded || !self.keep || self.last {
            self.writing = WriteState::Closed;
            return NextAction::Close { linger: !done };
        }
        if !done {
            return NextAction::Drain;
        }
        self.reading = ServerReadState::Head;
        self.writing = WriteState::Nothing;
        NextAction::Head
    }

    /// Processes the end of the client's data, with `unread` bytes left.
    pub fn eof(&self, unread: usize) -> ServerEof {
        match &self.reading {
            ServerReadState::Head if unread == 0 => ServerEof::Idle,
            ServerReadState::Body(body) if body.is_done() => ServerEof::Gone,
            ServerReadState::Failed => ServerEof::Gone,
            ServerReadState::Head | ServerReadState::Body(_) => ServerEof::Truncated,
        }
    }

    fn fail(&mut self) {
        self.reading = ServerReadState::Failed;
        self.keep = false;
    }
}

#[cfg(test)]
mod tests;
