//! An HTTP/2 client with prior knowledge.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::{Disconnect, ResponseHead, ResponsePart, TestProtocol};
use crate::support::{KEY, soon};

/// A connection, and the stream of its last request.
#[derive(Debug)]
pub(crate) struct Http2 {
    pub(crate) requests: SendRequest<Bytes>,
    socket: socket2::Socket,
    driver: JoinSet<Result<(), h2::Error>>,
    pings: h2::PingPong,
    response: Option<ResponseFuture>,
    stream: Option<SendStream<Bytes>>,
    body: Option<RecvStream>,
}

/// A chat completion with the default key, without its body.
pub(crate) fn chat_head() -> Request<()> {
    Request::post("http://gateway/v1/chat/completions")
        .header("authorization", format!("Bearer {KEY}"))
        .header("content-type", "application/json")
        .body(())
        .unwrap()
}

impl Http2 {
    pub(crate) async fn connect_with(address: SocketAddr, builder: &Builder) -> Self {
        let stream = TcpStream::connect(address).await.unwrap().into_std();
        let stream = stream.unwrap();
        let socket = socket2::Socket::from(stream.try_clone().unwrap());
        let stream = TcpStream::from_std(stream).unwrap();
        let shaken = builder.handshake(stream).await;
        let (requests, mut connection) = shaken.unwrap();
        let pings = connection.ping_pong().unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Self {
            requests,
            socket,
            driver,
            pings,
            response: None,
            stream: None,
            body: None,
        }
    }

    /// Starts a request; its body may follow.
    pub(crate) async fn begin(&mut self, head: Request<()>, ends: bool) {
        let ready = soon("capacity for a stream", self.requests.clone().ready()).await;
        let (response, stream) = ready.unwrap().send_request(head, ends).unwrap();
        (self.response, self.stream) = (Some(response), Some(stream));
    }

    /// Sends a part of the body as far as flow control permits; returns false if the
    /// gateway accepts no more.
    pub(crate) async fn send(&mut self, mut part: Bytes, ends: bool) -> bool {
        let stream = self.stream.as_mut().unwrap();
        while !part.is_empty() {
            stream.reserve_capacity(part.len());
            let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            let Some(Ok(room)) = room else { return false };
            let now = part.split_to(room.min(part.len()));
            if stream.send_data(now, false).is_err() {
                return false;
            }
        }
        stream.send_data(Bytes::new(), ends).is_ok()
    }

    /// Cancels the request in flight.
    pub(crate) fn cancel(&mut self) {
        self.stream.as_mut().unwrap().send_reset(Reason::CANCEL);
    }

    /// Sends a PING and waits for its acknowledgement.
    pub(crate) async fn ping(&mut self) {
        let pong = soon("a pong", self.pings.ping(h2::Ping::opaque())).await;
        pong.unwrap();
    }

    /// Waits for the end of the connection.
    pub(crate) async fn ended(&mut self) -> Result<(), h2::Error> {
        soon("the end of the connection", self.driver.join_next())
            .await
            .unwrap()
            .unwrap()
    }
}

pub(crate) fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}

impl TestProtocol for Http2 {
    const WAYS: &[Disconnect] = &[Disconnect::Close, Disconnect::Reset, Disconnect::Cancel];

    async fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &Builder::new()).await
    }

    async fn send_chat(&mut self, body: &str) {
        self.begin(chat_head(), false).await;
        let body = Bytes::copy_from_slice(body.as_bytes());
        assert!(soon("the body to be read", self.send(body, true)).await);
    }

    async fn head(&mut self) -> Option<ResponseHead> {
        let (head, body) = self.response.take()?.await.ok()?.into_parts();
        self.body = Some(body);
        Some(ResponseHead::new(
            head.status.as_u16(),
            fields(&head.headers),
        ))
    }

    async fn part(&mut self) -> ResponsePart {
        let body = self.body.as_mut().unwrap();
        match body.data().await {
            Some(Ok(bytes)) => {
                body.flow_control().release_capacity(bytes.len()).unwrap();
                ResponsePart::Bytes(bytes.to_vec())
            }
            Some(Err(_)) => ResponsePart::Aborted,
            None => match body.trailers().await {
                Ok(None) => ResponsePart::End,
                Ok(Some(trailers)) => panic!("trailers: {trailers:?}"),
                Err(_) => ResponsePart::Aborted,
            },
        }
    }

    async fn is_in_order(&mut self) -> bool {
        let head = Request::get("http://gateway/livez").body(()).unwrap();
        self.begin(head, true).await;
        let response = self.receive_response(|_| ()).await;
        response.head.is_some_and(|head| head.status == 200) && response.complete
    }

    async fn leave(mut self, how: Disconnect) -> Option<Self> {
        match how {
            Disconnect::Close => None,
            Disconnect::Reset => {
                self.socket.set_linger(Some(Duration::ZERO)).unwrap();
                self.driver.shutdown().await;
                None
            }
            Disconnect::Cancel => {
                self.cancel();
                Some(self)
            }
            Disconnect::HalfClose => panic!("HTTP/2 has no such thing"),
        }
    }
}
