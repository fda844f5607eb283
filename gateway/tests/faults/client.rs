//! A client that records exactly how the response to its request ended.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::support::{Reader, chat, get, soon};

/// The way in which a client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disconnect {
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Closes the sending side and keeps the connection open.
    HalfClose,
    /// Cancels its request and keeps the connection open.
    Cancel,
}

/// The head of a response, independent of the protocol.
#[derive(Debug, Clone)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    fields: Vec<(String, String)>,
}

impl ResponseHead {
    pub(crate) fn new(status: u16, fields: Vec<(String, String)>) -> Self {
        Self { status, fields }
    }

    /// The first value of a header field; its name is in lower case.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The next part of a response body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponsePart {
    Bytes(Vec<u8>),
    /// The body is complete.
    End,
    /// The body was truncated.
    Aborted,
}

/// Everything that a client received of a response.
#[derive(Debug, Clone)]
pub(crate) struct ParsedResponse {
    pub(crate) head: Option<ResponseHead>,
    pub(crate) body: Vec<u8>,
    pub(crate) complete: bool,
}

/// A connection to the gateway over one protocol, with one request at a time.
pub(crate) trait TestProtocol: Sized {
    /// The ways in which a client can disconnect.
    const WAYS: &[Disconnect];

    async fn connect(address: SocketAddr) -> Self;

    /// Sends a chat completion with the default key.
    async fn send_chat(&mut self, body: &str);

    /// The head of the response; `None` if the connection ended before it.
    async fn head(&mut self) -> Option<ResponseHead>;

    /// The next bytes of the response body.
    async fn part(&mut self) -> ResponsePart;

    /// Whether the connection is in the state that the last head announced: open and
    /// reusable, or closed without further bytes.
    async fn is_in_order(&mut self) -> bool;

    /// Disconnects. The returned client must be kept until the end of the test.
    async fn leave(self, how: Disconnect) -> Option<Self>;

    /// The rest of the response; `seen` is called with the body so far.
    async fn receive_response(&mut self, mut seen: impl FnMut(&[u8])) -> ParsedResponse {
        let mut response = ParsedResponse {
            head: soon("a response", self.head()).await,
            body: Vec::new(),
            complete: false,
        };
        seen(&response.body);
        while response.head.is_some() {
            match soon("more of the response", self.part()).await {
                ResponsePart::Bytes(bytes) => response.body.extend(bytes),
                ResponsePart::End => {
                    response.complete = true;
                    break;
                }
                ResponsePart::Aborted => break,
            }
            seen(&response.body);
        }
        response
    }

    /// Reads until this many bytes of the body have arrived.
    async fn until(&mut self, length: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < length {
            match soon("more of the response", self.part()).await {
                ResponsePart::Bytes(bytes) => body.extend(bytes),
                end => panic!("{end:?} after {} bytes", body.len()),
            }
        }
        body
    }
}

/// How the end of a body is determined.
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

/// HTTP/1.1 over TCP.
#[derive(Debug)]
pub(crate) struct Http1 {
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    framing: Framing,
    closes: bool,
}

impl Http1 {
    /// Sends bytes unchanged.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }
}

impl TestProtocol for Http1 {
    const WAYS: &[Disconnect] = &[Disconnect::Close, Disconnect::Reset, Disconnect::HalfClose];

    async fn connect(address: SocketAddr) -> Self {
        let (reader, writer) = TcpStream::connect(address).await.unwrap().into_split();
        Self {
            reader: Reader::new(reader),
            writer,
            framing: Framing::Length(0),
            closes: false,
        }
    }

    async fn send_chat(&mut self, body: &str) {
        self.writer.write_all(&chat(body)).await.unwrap();
    }

    async fn head(&mut self) -> Option<ResponseHead> {
        let text = self.reader.head().await?;
        let mut lines = text.trim_end().split("\r\n");
        let first = lines.next().unwrap();
        let status = first.strip_prefix("HTTP/1.1 ").unwrap()[..3]
            .parse()
            .unwrap();
        let field = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        let head = ResponseHead::new(status, lines.map(field).collect());
        self.closes = head.get("connection") == Some("close");
        self.framing = match (head.get("transfer-encoding"), head.get("content-length")) {
            (None, None) if status == 204 => Framing::Length(0),
            (Some("chunked"), None) => Framing::Chunked,
            (None, Some(length)) => Framing::Length(length.parse().unwrap()),
            _ => panic!("the end of the body is undefined: {text}"),
        };
        Some(head)
    }

    async fn part(&mut self) -> ResponsePart {
        match self.framing {
            Framing::Chunked => match self.reader.chunk().await {
                None => ResponsePart::Aborted,
                Some(last) if last.is_empty() => ResponsePart::End,
                Some(chunk) => ResponsePart::Bytes(chunk),
            },
            Framing::Length(0) => ResponsePart::End,
            Framing::Length(left) => match self.reader.some(left).await {
                None => ResponsePart::Aborted,
                Some(bytes) => {
                    self.framing = Framing::Length(left - bytes.len());
                    ResponsePart::Bytes(bytes)
                }
            },
        }
    }

    async fn is_in_order(&mut self) -> bool {
        if self.closes {
            return self.reader.some(1).await.is_none();
        }
        let asked = self.writer.write_all(&get("/livez", "")).await;
        if asked.is_err() {
            return false;
        }
        let response = self.receive_response(|_| ()).await;
        response.head.is_some_and(|head| head.status == 200) && response.complete
    }

    async fn leave(mut self, how: Disconnect) -> Option<Self> {
        match how {
            Disconnect::Close => None,
            Disconnect::Reset => {
                let socket = SockRef::from(self.writer.as_ref());
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                self.writer.forget();
                None
            }
            Disconnect::HalfClose => {
                self.writer.shutdown().await.unwrap();
                Some(self)
            }
            Disconnect::Cancel => panic!("HTTP/1.1 has no such thing"),
        }
    }
}

/// Defines tests that run over each protocol.
macro_rules! in_each_protocol {
    ($($name:ident),+ $(,)?) => {
        mod http1 {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name::<crate::client::Http1>().await;
                }
            )+
        }

        mod http2 {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name::<crate::http2::Http2>().await;
                }
            )+
        }
    };
}

pub(crate) use in_each_protocol;
