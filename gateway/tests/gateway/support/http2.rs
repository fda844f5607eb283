use bytes::Bytes;
use h2::RecvStream;
use http::Response;
use tokio::net::TcpStream;

use super::{KEY, TestGateway, soon};

/// A chat completion with the default key over HTTP/2, with this origin; `read`
/// receives the response.
pub(crate) async fn chat_over_http2(
    gateway: &TestGateway,
    origin: &str,
    body: &'static str,
    read: impl AsyncFnOnce(Response<RecvStream>),
) {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let asking = async {
        let request = http::Request::post("http://g/v1/chat/completions")
            .header("x-api-key", KEY)
            .header("origin", origin)
            .body(())
            .unwrap();
        let (response, mut sending) = client.send_request(request, false).unwrap();
        sending.send_data(Bytes::from(body), true).unwrap();
        read(soon("the head", response).await.unwrap()).await;
    };
    tokio::select! {
        () = asking => {}
        ended = connection => panic!("the connection ended: {ended:?}"),
    }
}

/// The next data of a response.
pub(crate) async fn next_data(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let data = soon("a part of the body", body.data()).await?;
    if let Ok(data) = &data {
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    Some(data)
}
