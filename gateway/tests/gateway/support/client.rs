use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::http::{Reader, header_values};
use super::{KEY, soon};

/// A response as received by a client.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) complete: bool,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header_values(&self.head, name).first().copied()
    }

    /// Status, `type`, `code` and `param` of an error.
    pub(crate) fn error(&self) -> (u16, String, String, Value) {
        let error = self.json()["error"].clone();
        let text = |name: &str| error[name].as_str().unwrap().to_owned();
        assert!(!text("message").is_empty());
        (
            self.status,
            text("type"),
            text("code"),
            error["param"].clone(),
        )
    }
}

/// One connection to the gateway.
#[derive(Debug)]
pub(crate) struct Client {
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let (reader, writer) = TcpStream::connect(address).await.unwrap().into_split();
        Self {
            reader: Reader::new(reader),
            writer,
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    /// Closes the sending side (FIN) and continues to read.
    pub(crate) async fn close_its_side(&mut self) {
        self.writer.shutdown().await.unwrap();
    }

    /// The head of a response.
    pub(crate) async fn head(&mut self) -> String {
        soon("the head of a response", self.reader.head())
            .await
            .expect("a response")
    }

    /// The next chunk of a chunked response.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        soon("a chunk", self.reader.chunk()).await
    }

    /// Reads chunks until `wanted` is complete.
    pub(crate) async fn until(&mut self, wanted: &str) {
        let mut got = Vec::new();
        while got.len() < wanted.len() {
            got.extend(self.chunk().await.expect("more of the response"));
        }
        assert_eq!(String::from_utf8(got).unwrap(), wanted);
    }

    pub(crate) async fn reply(&mut self) -> Reply {
        let head = self.head().await;
        let (body, complete) = soon("the body of a response", self.reader.body(&head)).await;
        Reply {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head,
            body,
            complete,
        }
    }

    /// Whether the gateway has closed the connection.
    pub(crate) async fn is_closed(&mut self) -> bool {
        !soon("the end of the connection", self.reader.more()).await
    }

    /// Sends a request and reads its response.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Reply {
        self.write(request).await;
        self.reply().await
    }
}

/// A GET request with header lines, each with its line ending.
pub(crate) fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n{headers}\r\n").into_bytes()
}

/// A POST request with header lines, each with its line ending.
pub(crate) fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A chat completion with the default key.
pub(crate) fn chat(body: &str) -> Vec<u8> {
    let headers = format!("authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n");
    post("/v1/chat/completions", &headers, body)
}
