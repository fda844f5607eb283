//! A minimal HTTP/1.1 reader that preserves every byte a peer sent.

use tokio::io::{AsyncRead, AsyncReadExt};

/// A message as received: the head as text, the body as bytes.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// A word of the first line: method or version, path or status.
    pub(crate) fn word(&self, index: usize) -> &str {
        self.head.split([' ', '\r']).nth(index).unwrap()
    }

    /// All values of a header field.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        header_values(&self.head, name)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).first().copied()
    }
}

pub(crate) fn header_values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    head.split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .filter(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .collect()
}

/// Reads messages from one connection.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    stream: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Reads more; false at the end or on a connection error.
    pub(crate) async fn more(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(read) if read > 0)
    }

    /// The head of a message; `None` if the connection ended before it.
    pub(crate) async fn head(&mut self) -> Option<String> {
        loop {
            let end = self.buffer.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let rest = self.buffer.split_off(end + 4);
                let head = std::mem::replace(&mut self.buffer, rest);
                return Some(String::from_utf8(head).unwrap());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// At most this many bytes, as soon as some are available; `None` at the end.
    pub(crate) async fn some(&mut self, most: usize) -> Option<Vec<u8>> {
        if self.buffer.is_empty() && !self.more().await {
            return None;
        }
        let rest = self.buffer.split_off(most.min(self.buffer.len()));
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    /// Exactly this many bytes; `None` if the connection ended before them.
    pub(crate) async fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.more().await {
                return None;
            }
        }
        let rest = self.buffer.split_off(count);
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    /// The bytes that were read but not yet consumed.
    pub(crate) fn take_all(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.exactly(end + 2).await?;
                return Some(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// The next chunk of a chunked body, empty for the last one; `None` if the
    /// connection ended before it.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
        let mut chunk = self.exactly(size + 2).await?;
        assert!(
            chunk.ends_with(b"\r\n"),
            "a chunk ends with CRLF, and no trailer follows"
        );
        chunk.truncate(size);
        Some(chunk)
    }

    /// The body that follows a head, and whether it is complete.
    pub(crate) async fn body(&mut self, head: &str) -> (Vec<u8>, bool) {
        if header_values(head, "transfer-encoding") == ["chunked"] {
            let mut body = Vec::new();
            loop {
                match self.chunk().await {
                    None => return (body, false),
                    Some(chunk) if chunk.is_empty() => return (body, true),
                    Some(chunk) => body.extend(chunk),
                }
            }
        }
        let length = header_values(head, "content-length")
            .first()
            .map_or(0, |length| length.parse().unwrap());
        match self.exactly(length).await {
            Some(body) => (body, true),
            None => (std::mem::take(&mut self.buffer), false),
        }
    }

    /// A whole message; `None` if the connection ended before its end.
    pub(crate) async fn message(&mut self) -> Option<Message> {
        let head = self.head().await?;
        let (body, complete) = self.body(&head).await;
        complete.then_some(Message { head, body })
    }
}
