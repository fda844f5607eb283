//! The head of an upstream's response.

use super::fields::{FieldSpan, HeaderFields, Span};
use super::framing::{Framing, FramingFields};
use super::head::{HeaderSlots, ParseProgress, SLOTS, allowed, take_fields, version, window};
use super::{Http1Error, Limits, Version};

/// The parsed head of a response. It holds ranges, not bytes, so the buffer may
/// move. It belongs to one connection and is reused for the next head without
/// allocating.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    progress: ParseProgress,
    status: u16,
    reason: Span,
    fields: Vec<FieldSpan>,
    version: Version,
    framing: Framing,
    length: Option<u64>,
    keeps_alive: bool,
    names_more: bool,
}

impl Default for ResponseHead {
    fn default() -> Self {
        Self {
            progress: ParseProgress::default(),
            status: 0,
            reason: Span::default(),
            fields: Vec::new(),
            version: Version::default(),
            framing: Framing::None,
            length: None,
            keeps_alive: false,
            names_more: false,
        }
    }
}

impl ResponseHead {
    /// Parses the head at the beginning of `buf`, including interim ones, and
    /// returns its length in bytes; `None` if it is incomplete, and then `buf`
    /// must begin with the same bytes at the next call. `to_head`: the request
    /// was a HEAD, whose response has no body whatever its fields are.
    pub fn parse(
        &mut self,
        buf: &[u8],
        to_head: bool,
        limits: Limits,
    ) -> Result<Option<usize>, Http1Error> {
        if !self.progress.is_due(buf, limits.head) {
            return Ok(None);
        }
        let len = self.parse_whole(buf, to_head, limits)?;
        if len.is_some() {
            self.progress = ParseProgress::default();
        }
        Ok(len)
    }

    fn parse_whole(
        &mut self,
        buf: &[u8],
        to_head: bool,
        limits: Limits,
    ) -> Result<Option<usize>, Http1Error> {
        if let Some(b'\r' | b'\n') = buf.first() {
            return Err(Http1Error::StatusLine);
        }
        let (head, over) = window(buf, limits);
        let mut slots: HeaderSlots<'_> = SLOTS;
        let slots = allowed(&mut slots, limits);
        let mut response = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut response,
            head,
            slots,
        );
        let len = match parsed {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return over.map_or(Ok(None), Err),
            Err(error) => return Err(fault(error)),
        };
        let mut facts = FramingFields::default();
        take_fields(buf, len, response.headers, &mut self.fields, &mut facts)?;
        self.reason = match response.reason {
            Some(reason) if !reason.is_empty() => Span::of(buf, reason.as_bytes()),
            _ => Span::default(),
        };
        self.status = response.code.unwrap_or_default();
        self.settle(&facts, version(response.version), to_head)?;
        Ok(Some(len))
    }

    fn settle(
        &mut self,
        facts: &FramingFields,
        version: Version,
        to_head: bool,
    ) -> Result<(), Http1Error> {
        match self.status {
            101 => return Err(Http1Error::Switched),
            100..=999 => {}
            _ => return Err(Http1Error::StatusLine),
        }
        let sent = facts.framing(version)?;
        let bodiless = to_head || matches!(self.status, 100..=199 | 204 | 304);
        self.version = version;
        self.framing = if bodiless {
            Framing::None
        } else {
            sent.unwrap_or(Framing::UntilClose)
        };
        self.length = facts.length;
        self.names_more = facts.names_more;
        // A peer that sends a 204 or a 304 with a length or a coding may send a
        // body after all, which could be mistaken for the next response.
        let suspect = self.status == 204 || (self.status == 304 && !to_head);
        let trusted = !suspect || matches!(sent, None | Some(Framing::Length(0)));
        self.keeps_alive =
            trusted && self.framing != Framing::UntilClose && facts.keeps_alive(version);
        Ok(())
    }

    /// The head with the bytes that it was parsed from.
    pub fn on<'b>(&'b self, buf: &'b [u8]) -> Response<'b> {
        Response { head: self, buf }
    }

    /// The status, from 100 to 999.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether another head follows this one.
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// The HTTP version of the upstream.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The framing of the body.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// The value of `content-length`: for a HEAD or a 304 that is not the
    /// length of what follows.
    pub fn announced(&self) -> Option<u64> {
        self.length
    }

    /// Whether the upstream keeps the connection for another request.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }
}

/// The head of a response.
#[derive(Debug, Clone, Copy)]
pub struct Response<'b> {
    head: &'b ResponseHead,
    buf: &'b [u8],
}

impl<'b> Response<'b> {
    /// The reason phrase; empty if it is absent or not ASCII.
    pub fn reason(self) -> &'b [u8] {
        self.head.reason.on(self.buf)
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

fn fault(error: httparse::Error) -> Http1Error {
    match error {
        httparse::Error::HeaderName => Http1Error::FieldName,
        httparse::Error::HeaderValue => Http1Error::FieldValue,
        httparse::Error::NewLine => Http1Error::LineEnd,
        httparse::Error::TooManyHeaders => Http1Error::TooManyFields,
        httparse::Error::Version => Http1Error::Version,
        httparse::Error::Status | httparse::Error::Token => Http1Error::StatusLine,
    }
}

#[cfg(test)]
mod tests;
