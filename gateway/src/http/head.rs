use fastllm_engine::HeaderFields;
use fastllm_wire::http1::{self, Http1Error, Limits, Request, RequestHead};
use http::HeaderName;

/// The head of a request in any version of HTTP, with its bytes. Its memory is
/// reused for the next request.
#[derive(Debug, Default)]
pub(crate) struct Head {
    bytes: Vec<u8>,
    pub(crate) parsed: RequestHead,
}

impl Head {
    /// Stores the bytes that `parsed` was parsed from.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// Parses a complete head.
    pub(crate) fn read(bytes: Vec<u8>) -> Result<Self, Http1Error> {
        let mut head = Self {
            bytes,
            parsed: RequestHead::default(),
        };
        let Self { bytes, parsed } = &mut head;
        match parsed.parse(bytes, Limits::default())? {
            Some(len) if len == bytes.len() => Ok(head),
            _ => Err(Http1Error::RequestLine),
        }
    }

    /// The head of a GET with these header lines.
    #[cfg(test)]
    pub(crate) fn with(lines: &str) -> Self {
        let head = format!("GET / HTTP/1.1\r\nhost: g\r\n{lines}\r\n");
        Self::read(head.into_bytes()).expect("a valid head")
    }

    fn request(&self) -> Request<'_> {
        self.parsed.on(&self.bytes)
    }

    /// The method, in its original case.
    pub(crate) fn method(&self) -> &[u8] {
        self.request().method()
    }

    /// The path without percent-decoding; it is ASCII.
    pub(crate) fn path(&self) -> &str {
        str::from_utf8(self.request().path()).unwrap_or_default()
    }

    /// The query without percent-decoding; empty if there is none. It is ASCII.
    pub(crate) fn query(&self) -> &str {
        let query = self.request().query().unwrap_or_default();
        str::from_utf8(query).unwrap_or_default()
    }

    /// The header fields.
    pub(crate) fn fields(&self) -> http1::HeaderFields<'_> {
        self.request().fields()
    }

    /// The value of the first field with this name.
    pub(crate) fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields().get(name)
    }
}

impl HeaderFields for Head {
    fn has(&self, name: &HeaderName, value: &[u8]) -> bool {
        self.fields().all(name.as_str()).any(|given| given == value)
    }
}
