//! The parts of HTTP/1.1 that both ends need: the first line and body framing.

use crate::Error;

/// Maximum number of header lines of a message.
const MAX_HEADERS: usize = 64;

/// The framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// Number of remaining bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
}

/// The position in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// In the line with the size of a chunk; the size so far.
    Size(u64),
    /// After the size, before the line end.
    Extension(u64),
    /// In the data.
    Data(u64),
    /// In the line end after the data.
    After,
    /// In the lines after the last chunk; whether this line is not empty.
    Trailer(bool),
}

/// The head of a request or a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Its length in bytes, including the empty line.
    pub(crate) bytes: usize,
    /// The status of a response, 0 for a request.
    pub(crate) status: u16,
    /// The body that follows.
    pub(crate) body: Body,
}

/// Parses the head of a response; `None` if it is incomplete.
pub(crate) fn response_head(bytes: &[u8]) -> Result<Option<Head>, Error> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response
        .parse(bytes)
        .map_err(|_| Error::Malformed("head"))?;
    let httparse::Status::Complete(bytes) = parsed else {
        return Ok(None);
    };
    let body = body(response.headers)?.ok_or(Error::Malformed("a response without framing"))?;
    let status = response.code.unwrap_or_default();
    Ok(Some(Head {
        bytes,
        status,
        body,
    }))
}

/// Parses the head of a request; `None` if it is incomplete.
pub(crate) fn request_head(bytes: &[u8]) -> Result<Option<Head>, Error> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes).map_err(|_| Error::Malformed("head"))?;
    let httparse::Status::Complete(bytes) = parsed else {
        return Ok(None);
    };
    let body = body(request.headers)?.unwrap_or(Body::Length(0));
    Ok(Some(Head {
        bytes,
        status: 0,
        body,
    }))
}

fn body(headers: &[httparse::Header<'_>]) -> Result<Option<Body>, Error> {
    let mut length = None;
    for header in headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(Some(Body::Chunked(Chunk::Size(0))));
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            let number = text.parse().map_err(|_| Error::Malformed("length"))?;
            length = Some(Body::Length(number));
        }
    }
    Ok(length)
}

/// How much of a body was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Number of bytes that belong to it.
    pub(crate) used: usize,
    /// Whether its end was reached.
    pub(crate) complete: bool,
}

impl Body {
    /// Consumes the bytes of this body at the front of `bytes`, and passes its
    /// content to `observe`.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        mut observe: impl FnMut(&[u8]),
    ) -> Result<Progress, Error> {
        match self {
            Self::Length(left) => {
                let used = within(*left, bytes.len());
                observe(&bytes[..used]);
                *left -= used as u64;
                let complete = *left == 0;
                Ok(Progress { used, complete })
            }
            Self::Chunked(chunk) => chunk.take(bytes, observe),
        }
    }
}

/// The smaller of both.
fn within(left: u64, there: usize) -> usize {
    usize::try_from(left).map_or(there, |left| left.min(there))
}

impl Chunk {
    fn take(&mut self, bytes: &[u8], mut observe: impl FnMut(&[u8])) -> Result<Progress, Error> {
        let mut used = 0;
        while let Some(&byte) = bytes.get(used) {
            if let Self::Data(left) = *self {
                let now = within(left, bytes.len() - used);
                observe(&bytes[used..used + now]);
                used += now;
                let left = left - now as u64;
                *self = if left == 0 {
                    Self::After
                } else {
                    Self::Data(left)
                };
                continue;
            }
            used += 1;
            let complete = byte == b'\n' && matches!(self, Self::Trailer(false));
            *self = self.after(byte)?;
            if complete {
                return Ok(Progress { used, complete });
            }
        }
        Ok(Progress {
            used,
            complete: false,
        })
    }

    /// The position after one byte of framing.
    fn after(self, byte: u8) -> Result<Self, Error> {
        Ok(match (self, byte) {
            (Self::Size(0) | Self::Extension(0) | Self::Trailer(_), b'\n') => Self::Trailer(false),
            (Self::Size(size) | Self::Extension(size), b'\n') => Self::Data(size),
            (Self::Size(size), b'\r' | b';') => Self::Extension(size),
            (Self::Size(size), digit) => {
                let digit = char::from(digit).to_digit(16);
                let digit = digit.ok_or(Error::Malformed("size of a chunk"))?;
                Self::Size((size << 4) | u64::from(digit))
            }
            (Self::After, b'\n') => Self::Size(0),
            (Self::Trailer(_), byte) if byte != b'\r' => Self::Trailer(true),
            (state, _) => state,
        })
    }
}

/// Counts the events of a stream (their blank lines), independent of read
/// boundaries.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Events {
    /// Number of complete events.
    pub(crate) ended: u64,
    line_ended: bool,
}

impl Events {
    /// Processes the next bytes.
    pub(crate) fn observe(&mut self, bytes: &[u8]) {
        // The offset after the last line break, relative to `bytes`.
        let mut next_line = if self.line_ended { Some(0) } else { None };
        for at in memchr::memchr_iter(b'\n', bytes) {
            if next_line == Some(at) {
                self.ended += 1;
                next_line = None;
            } else {
                next_line = Some(at + 1);
            }
        }
        self.line_ended = next_line == Some(bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::{Body, Chunk, Events, request_head, response_head};

    #[test]
    fn a_head_has_status_and_body() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let head = response_head(bytes).unwrap().unwrap();
        assert_eq!((head.bytes, head.status), (bytes.len() - 5, 200));
        assert_eq!(head.body, Body::Length(5));
        assert!(response_head(&bytes[..20]).unwrap().is_none());
        assert!(response_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn a_request_without_a_length_has_no_body() {
        let head = request_head(b"GET /v1/models HTTP/1.1\r\n\r\n");
        assert_eq!(head.unwrap().unwrap().body, Body::Length(0));
    }

    #[test]
    fn chunks_and_events_are_found_with_any_read_boundaries() {
        let bytes = b"8\r\ndata: 1\n\r\n1;x=y\r\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\nt: 1\r\n\r\nNEXT";
        for step in 1..bytes.len() {
            let mut body = Body::Chunked(Chunk::Size(0));
            let (mut events, mut content) = (Events::default(), Vec::new());
            let mut used = 0;
            let complete = bytes.chunks(step).any(|part| {
                let progress = body
                    .take(part, |bytes| {
                        events.observe(bytes);
                        content.extend_from_slice(bytes);
                    })
                    .unwrap();
                used += progress.used;
                progress.complete
            });
            assert!(complete, "{step}");
            assert_eq!(&bytes[used..], b"NEXT", "{step}");
            assert_eq!(content, b"data: 1\n\ndata: 2\n\n", "{step}");
            assert_eq!(events.ended, 2, "{step}");
        }
    }
}
