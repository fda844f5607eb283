//! Writes heads and chunks into a buffer that the caller reuses.

use std::num::NonZeroUsize;

use memchr::memchr3;

use super::fields::{HeaderField, is_hop_by_hop, is_token};
use super::{Framing, Http1Error, Persistence};

/// What ends a chunk's data.
pub const CHUNK_END: &[u8] = b"\r\n";

/// What ends a chunked body, after the end of its last chunk.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The interim response that allows the client to send its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The line before a chunk's data, which is followed by [`CHUNK_END`].
///
/// ```
/// use std::num::NonZeroUsize;
/// use fastllm_wire::http1::ChunkLine;
///
/// let line = NonZeroUsize::new(26).map(ChunkLine::new).unwrap();
/// assert_eq!(line.as_bytes(), b"1a\r\n");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ChunkLine {
    text: [u8; Self::ROOM],
    from: usize,
}

impl ChunkLine {
    /// Sixteen digits and the line end.
    const ROOM: usize = 18;

    /// The line for this many bytes of data; a size of zero would end the body.
    pub fn new(len: NonZeroUsize) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = *b"0000000000000000\r\n";
        let mut from = Self::ROOM - 2;
        let mut left = len.get();
        for place in text.iter_mut().rev().skip(2) {
            *place = HEX.get(left & 15).copied().unwrap_or_default();
            from -= 1;
            left >>= 4;
            if left == 0 {
                break;
            }
        }
        Self { text, from }
    }

    /// The bytes of the line, including its end.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.get(self.from..).unwrap_or_default()
    }
}

/// Writes one head. Unless [`HeadWriter::end`] returns `Ok`, the buffer is
/// restored.
///
/// ```
/// use fastllm_wire::http1::{Framing, HeadWriter, Persistence};
///
/// let mut out = Vec::new();
/// let mut head = HeadWriter::response(&mut out, 200);
/// head.field(b"content-type", b"text/event-stream");
/// head.end(Framing::Chunked, Persistence::Keep).unwrap();
/// assert_eq!(
///     out,
///     b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
///       transfer-encoding: chunked\r\n\r\n"
/// );
/// ```
#[derive(Debug)]
#[must_use = "a head that is not ended is not written"]
pub struct HeadWriter<'v> {
    out: &'v mut Vec<u8>,
    start: usize,
    writable: bool,
    announced: bool,
    ended: bool,
}

impl<'v> HeadWriter<'v> {
    /// Starts the head of a request, appended to `out`. The caller adds `host`,
    /// which HTTP/1.1 requires.
    pub fn request(out: &'v mut Vec<u8>, method: &[u8], target: &[u8]) -> Self {
        let writable = !method.is_empty()
            && method.iter().all(|byte| is_token(*byte))
            && !target.is_empty()
            && target.iter().all(u8::is_ascii_graphic);
        let start = out.len();
        for part in [method, b" ", target, b" HTTP/1.1\r\n"] {
            out.extend_from_slice(part);
        }
        Self::begun(out, start, writable)
    }

    /// Starts the head of a response, appended to `out`.
    pub fn response(out: &'v mut Vec<u8>, status: u16) -> Self {
        let start = out.len();
        out.extend_from_slice(b"HTTP/1.1 ");
        decimal(out, u64::from(status));
        out.push(b' ');
        out.extend_from_slice(reason(status).as_bytes());
        out.extend_from_slice(b"\r\n");
        Self::begun(out, start, (100..1000).contains(&status))
    }

    fn begun(out: &'v mut Vec<u8>, start: usize, writable: bool) -> Self {
        Self {
            out,
            start,
            writable,
            announced: false,
            ended: false,
        }
    }

    /// Adds a field. A name that is not a token, a value with a line end or a
    /// NUL, and a hop-by-hop field or one that [`HeadWriter::end`] writes make
    /// `end` fail.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> &mut Self {
        if is_writable(name, value) {
            line(self.out, name, value);
        } else {
            self.writable = false;
        }
        self
    }

    /// Adds an end-to-end field of a parsed head (see
    /// [`super::HeaderFields::end_to_end`]), which is already validated.
    pub fn copy(&mut self, field: HeaderField<'_>) -> &mut Self {
        line(self.out, field.name, field.value);
        self
    }

    /// Adds `content-length` without a body of that length: in the response to
    /// a HEAD. Such a head ends with [`Framing::None`].
    pub fn announce(&mut self, length: u64) -> &mut Self {
        self.writable &= !std::mem::replace(&mut self.announced, true);
        self.out.extend_from_slice(b"content-length: ");
        decimal(self.out, length);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Writes the framing, the persistence of the connection, and the blank
    /// line. A body that is delimited by the end of the connection requires
    /// [`Persistence::Close`].
    pub fn end(mut self, framing: Framing, persistence: Persistence) -> Result<(), Http1Error> {
        match framing {
            Framing::None => {}
            Framing::UntilClose => self.writable &= persistence == Persistence::Close,
            Framing::Length(length) => {
                self.announce(length);
            }
            Framing::Chunked => {
                self.writable &= !self.announced;
                self.out
                    .extend_from_slice(b"transfer-encoding: chunked\r\n");
            }
        }
        if !self.writable {
            return Err(Http1Error::Unwritable);
        }
        self.out.extend_from_slice(match persistence {
            Persistence::Keep => b"\r\n",
            Persistence::KeepSaid => b"connection: keep-alive\r\n\r\n",
            Persistence::Close => b"connection: close\r\n\r\n",
        });
        self.ended = true;
        Ok(())
    }
}

impl Drop for HeadWriter<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.out.truncate(self.start);
        }
    }
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

fn is_writable(name: &[u8], value: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|byte| is_token(*byte))
        && memchr3(b'\r', b'\n', 0, value).is_none()
        && !name.eq_ignore_ascii_case(b"content-length")
        && !is_hop_by_hop(name)
}

fn decimal(out: &mut Vec<u8>, number: u64) {
    const ROOM: usize = 20;
    let mut text = [b'0'; ROOM];
    let mut left = number;
    let mut from = ROOM;
    for place in text.iter_mut().rev() {
        *place += u8::try_from(left % 10).unwrap_or_default();
        from -= 1;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(text.get(from..).unwrap_or_default());
}

/// The reason phrase of a status; recipients ignore it.
fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        424 => "Failed Dependency",
        425 => "Too Early",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        529 => "Site is Overloaded",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
