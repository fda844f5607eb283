use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::http::Reader;
use super::soon;

/// An upstream whose requests the test reads and responds to step by step.
#[derive(Debug)]
pub(crate) struct ManualUpstream {
    address: SocketAddr,
    arrived: mpsc::Receiver<Exchange>,
    _tasks: JoinSet<()>,
}

/// A request of which only the head has been read.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) head: String,
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl ManualUpstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, arrived) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(receive(stream, sender.clone()));
            }
        });
        Self {
            address,
            arrived,
            _tasks: tasks,
        }
    }

    /// The base URL of the upstream with a path.
    pub(crate) fn api_base(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The next request that is not a probe.
    pub(crate) async fn next(&mut self) -> Exchange {
        let arrived = soon("a request upstream", self.arrived.recv()).await;
        arrived.unwrap()
    }

    /// Whether another request has arrived.
    pub(crate) fn has_more(&mut self) -> bool {
        self.arrived.try_recv().is_ok()
    }
}

async fn receive(stream: TcpStream, sender: mpsc::Sender<Exchange>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = Reader::new(reader);
    while let Some(head) = reader.head().await {
        if !head.starts_with("GET ") {
            let exchange = Exchange {
                head,
                reader,
                writer,
            };
            return sender.send(exchange).await.unwrap();
        }
        let probed = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        if writer.write_all(probed).await.is_err() {
            return;
        }
    }
}

impl Exchange {
    /// This many bytes of the body, as sent on the wire.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = soon("a part of the body", self.reader.exactly(count)).await;
        taken.expect("more of the body")
    }

    /// The next chunk of a chunked body, empty for the last one.
    pub(crate) async fn chunk(&mut self) -> Vec<u8> {
        let chunk = soon("a chunk of the body", self.reader.chunk()).await;
        chunk.expect("more of the body")
    }

    /// Everything until the gateway closes the connection.
    pub(crate) async fn until_disconnect(&mut self) -> Vec<u8> {
        let closed = async { while self.reader.more().await {} };
        soon("the gateway to close the connection", closed).await;
        self.reader.take_all()
    }

    pub(crate) async fn respond(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }
}
