//! The state of an upstream's connection.

use super::{BodyDecoder, DecodedBody, Http1Error, Limits, ResponseHead};

/// Maximum number of interim responses that are skipped per request.
const INTERIM: u8 = 16;

/// One connection to an upstream. The caller reads and writes; this tracks what
/// may follow, and whether the connection can be reused.
///
/// ```
/// use fastllm_wire::http1::{ReceivedHead, Client, Limits, ResponseHead};
///
/// let (mut client, mut head) = (Client::new(Limits::default()), ResponseHead::default());
/// client.begin(false).unwrap();
/// client.sent();
/// let input = b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// let mut at = 0;
/// let body = loop {
///     match client.read_head(&input[at..], &mut head).unwrap() {
///         ReceivedHead::Nothing => unreachable!("all of it is there"),
///         ReceivedHead::Interim(len) => at += len,
///         ReceivedHead::Response(len) => break &input[at + len..],
///     }
/// };
/// assert_eq!(head.status(), 200);
/// assert!(client.read_body(body).unwrap().end);
/// assert!(client.is_reusable());
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    limits: Limits,
    reading: ClientReadState,
    to_head: bool,
    sent: bool,
    keep: bool,
    interim: u8,
}

#[derive(Debug, Clone)]
enum ClientReadState {
    /// No request is in progress.
    Nothing,
    Head,
    Body(BodyDecoder),
    Failed,
}

/// The received head, with its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedHead {
    /// No complete head.
    Nothing,
    /// An interim response: another head follows.
    Interim(usize),
    /// The final response.
    Response(usize),
}

/// The meaning of an end of the upstream's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEof {
    /// No request was in progress.
    Idle,
    /// No byte of the response was received: on a reused connection the request
    /// may be retried.
    Unanswered,
    /// The end of the connection delimits the response body.
    Complete,
    /// The upstream aborted the response.
    Truncated,
}

impl Client {
    /// A new connection.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            reading: ClientReadState::Nothing,
            to_head: false,
            sent: true,
            keep: true,
            interim: 0,
        }
    }

    /// Begins a request; `is_head`: the method is HEAD.
    pub fn begin(&mut self, is_head: bool) -> Result<(), Http1Error> {
        if !self.is_reusable() {
            return Err(Http1Error::OutOfOrder);
        }
        self.reading = ClientReadState::Head;
        self.to_head = is_head;
        self.sent = false;
        self.interim = 0;
        Ok(())
    }

    /// The request was written completely.
    pub fn sent(&mut self) {
        self.sent = true;
    }

    /// Reads one head of the response from the beginning of `input`, into
    /// `head`.
    pub fn read_head(
        &mut self,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<ReceivedHead, Http1Error> {
        if !matches!(self.reading, ClientReadState::Head) {
            return Err(Http1Error::OutOfOrder);
        }
        let parsed = head.parse(input, self.to_head, self.limits);
        let arrived = parsed.and_then(|len| self.tell(len, head));
        if arrived.is_err() {
            self.fail();
        }
        arrived
    }

    fn tell(
        &mut self,
        len: Option<usize>,
        head: &ResponseHead,
    ) -> Result<ReceivedHead, Http1Error> {
        let Some(len) = len else {
            return Ok(ReceivedHead::Nothing);
        };
        if head.is_interim() {
            self.interim += 1;
            if self.interim > INTERIM {
                return Err(Http1Error::TooManyInterim);
            }
            return Ok(ReceivedHead::Interim(len));
        }
        self.keep = head.keeps_alive();
        self.reading = ClientReadState::Body(BodyDecoder::new(head.framing()));
        Ok(ReceivedHead::Response(len))
    }

    /// Reads the body of the response. May be called again after its end.
    pub fn read_body(&mut self, input: &[u8]) -> Result<DecodedBody, Http1Error> {
        let ClientReadState::Body(body) = &mut self.reading else {
            return Err(Http1Error::OutOfOrder);
        };
        let decoded = body.decode(input);
        if decoded.is_err() {
            self.fail();
        }
        decoded
    }

    /// Whether the response is complete.
    pub fn has_response(&self) -> bool {
        matches!(&self.reading, ClientReadState::Body(body) if body.is_done())
    }

    /// Whether another request may be sent: the request and the response are
    /// complete, and the upstream keeps the connection. If unread bytes are
    /// left then, they belong to no request, and the connection must be closed.
    pub fn is_reusable(&self) -> bool {
        self.keep
            && self.sent
            && (matches!(self.reading, ClientReadState::Nothing) || self.has_response())
    }

    /// Processes the end of the upstream's data, with `unread` bytes left.
    pub fn eof(&mut self, unread: usize) -> ClientEof {
        self.keep = false;
        match &mut self.reading {
            ClientReadState::Nothing if unread == 0 => ClientEof::Idle,
            ClientReadState::Head if unread == 0 && self.interim == 0 => ClientEof::Unanswered,
            ClientReadState::Body(body) => match body.eof() {
                Ok(()) => ClientEof::Complete,
                Err(_) => ClientEof::Truncated,
            },
            ClientReadState::Nothing | ClientReadState::Head | ClientReadState::Failed => {
                ClientEof::Truncated
            }
        }
    }

    fn fail(&mut self) {
        self.reading = ClientReadState::Failed;
        self.keep = false;
    }
}

#[cfg(test)]
mod tests;
