//! The head of a request.

use super::fields::{FieldSpan, HeaderFields, Span};
use super::framing::{Framing, FramingFields};
use super::head::{HeaderSlots, ParseProgress, SLOTS, allowed, take_fields, version, window};
use super::target::Target;
use super::{Http1Error, Limits, Version};

/// Maximum number of blank lines before a request: some clients end a body with
/// one.
const LEADING_LINES: usize = 2;

/// The parsed head of a request. It holds ranges, not bytes, so the buffer may
/// move. It belongs to one connection and is reused for the next head without
/// allocating.
///
/// ```
/// use fastllm_wire::http1::{Framing, Limits, RequestHead};
///
/// let bytes = b"POST /v1/models?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}GET ";
/// let mut head = RequestHead::default();
/// let len = head.parse(bytes, Limits::default()).unwrap().unwrap();
/// let request = head.on(bytes);
/// assert_eq!((request.method(), request.path()), (b"POST".as_slice(), b"/v1/models".as_slice()));
/// assert_eq!(request.fields().get("host"), Some(b"h".as_slice()));
/// assert_eq!(head.framing(), Framing::Length(2));
/// assert_eq!(&bytes[len..], b"{}GET ");
/// ```
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
#[derive(Debug, Clone)]
pub struct RequestHead {
    progress: ParseProgress,
    method: Span,
    target: Span,
    parts: Target,
    fields: Vec<FieldSpan>,
    version: Version,
    framing: Framing,
    keeps_alive: bool,
    names_more: bool,
    expects_continue: bool,
    is_head: bool,
}

impl Default for RequestHead {
    fn default() -> Self {
        Self {
            progress: ParseProgress::default(),
            method: Span::default(),
            target: Span::default(),
            parts: Target::default(),
            fields: Vec::new(),
            version: Version::default(),
            framing: Framing::None,
            keeps_alive: false,
            names_more: false,
            expects_continue: false,
            is_head: false,
        }
    }
}

impl RequestHead {
    /// Parses the head at the beginning of `buf` and returns its length in
    /// bytes; `None` if it is incomplete, and then `buf` must begin with the
    /// same bytes at the next call.
    pub fn parse(&mut self, buf: &[u8], limits: Limits) -> Result<Option<usize>, Http1Error> {
        if !self.progress.is_due(buf, limits.head) {
            return Ok(None);
        }
        let len = self.parse_whole(buf, limits)?;
        if len.is_some() {
            self.progress = ParseProgress::default();
        }
        Ok(len)
    }

    fn parse_whole(&mut self, buf: &[u8], limits: Limits) -> Result<Option<usize>, Http1Error> {
        let skipped = leading_lines(buf)?;
        let (head, over) = window(buf.get(skipped..).unwrap_or_default(), limits);
        let mut slots: HeaderSlots<'_> = SLOTS;
        let slots = allowed(&mut slots, limits);
        let mut request = httparse::Request::new(&mut []);
        let len = match request.parse_with_uninit_headers(head, slots) {
            Ok(httparse::Status::Complete(len)) => skipped + len,
            Ok(httparse::Status::Partial) => return over.map_or(Ok(None), Err),
            Err(error) => return Err(fault(error, head)),
        };
        let mut facts = FramingFields::default();
        take_fields(buf, len, request.headers, &mut self.fields, &mut facts)?;
        let method = request.method.unwrap_or_default().as_bytes();
        let target = request.path.unwrap_or_default().as_bytes();
        if method == b"CONNECT" {
            return Err(Http1Error::Target);
        }
        self.parts = Target::parse(target)?;
        self.is_head = method == b"HEAD";
        self.method = Span::of(buf, method);
        self.target = Span::of(buf, target);
        self.settle(&facts, version(request.version))?;
        Ok(Some(len))
    }

    fn settle(&mut self, facts: &FramingFields, version: Version) -> Result<(), Http1Error> {
        facts.check_host(version)?;
        self.version = version;
        self.framing = facts.framing(version)?.unwrap_or(Framing::None);
        self.keeps_alive = facts.keeps_alive(version);
        self.names_more = facts.names_more;
        let body = !matches!(self.framing, Framing::None | Framing::Length(0));
        self.expects_continue = facts.expects_continue(version)? && body;
        Ok(())
    }

    /// The head with the bytes that it was parsed from.
    pub fn on<'b>(&'b self, buf: &'b [u8]) -> Request<'b> {
        Request { head: self, buf }
    }

    /// The HTTP version of the client.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The framing of the body.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether the method is HEAD, so that the response has no body.
    pub fn is_head(&self) -> bool {
        self.is_head
    }

    /// Whether the client keeps the connection for another request.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Whether the client waits for `100 Continue` before it sends its body.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }
}

/// The head of a request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'b> {
    head: &'b RequestHead,
    buf: &'b [u8],
}

impl<'b> Request<'b> {
    /// The method: a token, case-sensitive.
    pub fn method(self) -> &'b [u8] {
        self.head.method.on(self.buf)
    }

    /// The target as received.
    pub fn target(self) -> &'b [u8] {
        self.head.target.on(self.buf)
    }

    /// The path, which begins with a slash. It is not decoded.
    pub fn path(self) -> &'b [u8] {
        match self.head.parts.path.on(self.target()) {
            [] => b"/",
            path => path,
        }
    }

    /// The query, without the question mark.
    pub fn query(self) -> Option<&'b [u8]> {
        Some(self.head.parts.query?.on(self.target()))
    }

    /// Host and port: of the target if it is an absolute URI, or else of the
    /// `host` field.
    pub fn authority(self) -> Option<&'b [u8]> {
        match self.head.parts.authority {
            Some(authority) => Some(authority.on(self.target())),
            None => self.fields().get("host"),
        }
    }

    /// The header fields.
    pub fn fields(self) -> HeaderFields<'b> {
        HeaderFields {
            at: &self.head.fields,
            buf: self.buf,
            names_more: self.head.names_more,
        }
    }
}

/// Number of bytes of blank lines before the request.
fn leading_lines(buf: &[u8]) -> Result<usize, Http1Error> {
    let mut rest = buf;
    for _ in 0..LEADING_LINES {
        rest = rest.strip_prefix(b"\r\n").unwrap_or(rest);
    }
    match rest {
        [b'\r'] if buf.len() < 2 * LEADING_LINES => Ok(buf.len()),
        [b'\r' | b'\n', ..] => Err(Http1Error::LineEnd),
        _ => Ok(buf.len() - rest.len()),
    }
}

fn fault(error: httparse::Error, head: &[u8]) -> Http1Error {
    match error {
        httparse::Error::HeaderName => Http1Error::FieldName,
        httparse::Error::HeaderValue => Http1Error::FieldValue,
        httparse::Error::NewLine => Http1Error::LineEnd,
        httparse::Error::TooManyHeaders => Http1Error::TooManyFields,
        httparse::Error::Version if names_http(head) => Http1Error::Version,
        httparse::Error::Version | httparse::Error::Status | httparse::Error::Token => {
            Http1Error::RequestLine
        }
    }
}

/// Whether the third word of the first line is any HTTP version.
fn names_http(head: &[u8]) -> bool {
    let third = head.splitn(3, |byte| *byte == b' ').nth(2);
    third
        .and_then(|third| third.strip_prefix(b"HTTP/"))
        .is_some_and(|version| version.first().is_some_and(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests;
