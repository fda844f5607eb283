//! Requests of HTTP/1.1 and HTTP/1.0 clients.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::case::{DONE, JSON, ONE, STREAMED, USAGE, WHOLE};
use crate::support::{
    Barrier, Client, KEY, Options, Step, TestGateway, Upstream, chat, events, get, json_response,
    post, raw, soon,
};

const PATH: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n";

fn authorised(fields: &str) -> String {
    format!("{PATH}authorization: Bearer {KEY}\r\n{fields}\r\n")
}

/// Writes bytes and reads until the gateway closes the connection.
pub(crate) async fn until_closed(address: SocketAddr, bytes: &[u8]) -> String {
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    let mut response = Vec::new();
    let write = async {
        // The gateway may have closed the connection already.
        let _refused = writer.write_all(bytes).await;
        std::future::pending::<()>().await;
    };
    let read = async {
        // A reset after the response also closes the connection.
        while matches!(reader.read_buf(&mut response).await, Ok(read) if read > 0) {}
    };
    soon("the end of the connection", async {
        tokio::select! {
            () = write => {}
            () = read => {}
        }
    })
    .await;
    String::from_utf8(response).unwrap()
}

fn status(response: &str) -> Option<u16> {
    response.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let responses = (0..6).map(|n| json_response("200 OK", &format!("{{\"n\":{n}}}")));
    let upstream = Upstream::start(responses).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    let mut bytes = Vec::new();
    for _ in 0..3 {
        bytes.extend(chat(WHOLE));
        bytes.extend(get("/livez", ""));
        bytes.extend(chat(WHOLE));
        bytes.extend(post("/v1/chat/completions", "", WHOLE));
    }
    client.write(&bytes).await;
    for n in 0..3 {
        assert_eq!(client.reply().await.text(), format!("{{\"n\":{}}}", 2 * n));
        assert_eq!(client.reply().await.text(), "{\"status\":\"ok\"}");
        assert_eq!(
            client.reply().await.text(),
            format!("{{\"n\":{}}}", 2 * n + 1)
        );
        assert_eq!(client.reply().await.status, 401);
    }
    drop(client);
    assert_eq!(gateway.finish().await.len(), 6);
}

#[tokio::test]
async fn requests_may_arrive_one_byte_at_a_time() {
    let stream = events(&[ONE, USAGE, DONE], true);
    let upstream = Upstream::start([raw(&stream)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    for byte in [chat(STREAMED), chat(STREAMED)].concat() {
        client.write(&[byte]).await;
        tokio::task::yield_now().await;
    }
    for _ in 0..2 {
        assert_eq!(client.reply().await.text(), [ONE, DONE].concat());
    }
}

#[tokio::test]
async fn a_client_that_expects_100_receives_it_before_the_response() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    let head = authorised(&format!(
        "expect: 100-continue\r\ncontent-length: {}\r\n",
        WHOLE.len()
    ));
    for _ in 0..2 {
        client.write(head.as_bytes()).await;
        assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.write(WHOLE.as_bytes()).await;
        assert_eq!(client.reply().await.text(), JSON);
    }
    for request in upstream.seen().requests {
        assert_eq!(request.body, WHOLE.as_bytes());
        assert_eq!(request.header("expect"), None);
    }
}

#[tokio::test]
async fn a_rejected_request_does_not_receive_100() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&["--max-body-mb=1"])).await;
    let expect = "expect: 100-continue\r\n";
    let unknown = format!("{PATH}{expect}content-length: 17\r\n\r\n");
    let large = authorised(&format!("{expect}content-length: {}\r\n", 2 << 20));
    for (head, status) in [(unknown, 401), (large, 413)] {
        let mut client = gateway.client().await;
        client.write(head.as_bytes()).await;
        assert_eq!(client.reply().await.status, status);
    }
    assert!(upstream.seen().requests.is_empty());
}

#[tokio::test]
async fn a_chunked_request_is_reassembled() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    let mut bytes = authorised("transfer-encoding: Chunked\r\n").into_bytes();
    for part in WHOLE.as_bytes().chunks(3) {
        bytes.extend(format!("00{:X};a=\"b\"\r\n", part.len()).into_bytes());
        bytes.extend(part);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\nauthorization: Bearer another\r\nx-trailer: 1\r\n\r\n");
    client.write(&bytes).await;
    assert_eq!(client.reply().await.text(), JSON);
    let request = upstream.request();
    assert_eq!(request.body, WHOLE.as_bytes());
    assert_eq!(request.headers("authorization"), ["Bearer credential-1"]);
    assert_eq!(request.header("x-trailer"), None);
    // The bytes that follow on the connection are the next request.
    assert_eq!(client.send(&get("/livez", "")).await.status, 200);
}

#[tokio::test]
async fn an_http_1_0_response_has_a_length_or_ends_with_the_connection() {
    let stream = events(&[ONE, USAGE, DONE], true);
    let upstream = Upstream::start([json_response("200 OK", JSON), raw(&stream)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for (request, body) in [(WHOLE, JSON.to_owned()), (STREAMED, [ONE, DONE].concat())] {
        let bytes = String::from_utf8(chat(request)).unwrap();
        let bytes = bytes.replace("HTTP/1.1", "HTTP/1.0");
        let response = until_closed(gateway.address, bytes.as_bytes()).await;
        let (head, found) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1."), "{head}");
        assert!(!head.to_ascii_lowercase().contains("chunked"), "{head}");
        assert_eq!(found, body);
    }
    assert_eq!(gateway.finish().await.len(), 2);
}

#[tokio::test]
async fn an_http_1_0_client_may_keep_its_connection_alive() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    let request = String::from_utf8(chat(WHOLE)).unwrap();
    let request = request.replace("HTTP/1.1\r\n", "HTTP/1.0\r\nconnection: Keep-Alive\r\n");
    for _ in 0..3 {
        let reply = client.send(request.as_bytes()).await;
        assert_eq!(reply.text(), JSON);
        let kept = reply.header("connection").unwrap();
        assert!(kept.eq_ignore_ascii_case("keep-alive"));
    }
}

#[tokio::test]
async fn connection_close_closes_the_connection() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let bytes = String::from_utf8(chat(WHOLE)).unwrap();
    let bytes = bytes.replace("host:", "Connection: x, Close\r\nhost:");
    let response = until_closed(
        gateway.address,
        [bytes.as_str(), &bytes].concat().as_bytes(),
    )
    .await;
    assert_eq!(response.matches("HTTP/1.1 200").count(), 1);
    assert!(response.to_ascii_lowercase().contains("connection: close"));
    assert_eq!(upstream.seen().requests.len(), 1);
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let upstream = Upstream::start([]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    for path in ["/health", "/healthz", "/livez", "/readyz", "/metrics"] {
        let request = get(path, "");
        client.write(&[b"HEAD", &request[3..]].concat()).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        assert!(!head.contains("chunked"), "{head}");
        // No body bytes are between this response and the next.
        assert_eq!(client.send(&request).await.status, 200);
    }
}

#[tokio::test]
async fn head_of_anything_has_no_body() {
    let upstream = Upstream::start([]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = gateway.client().await;
    for path in ["/v1/models", "/nowhere", "/v1/chat/completions"] {
        let request = get(path, &format!("authorization: Bearer {KEY}\r\n"));
        client.write(&[b"HEAD", &request[3..]].concat()).await;
        assert!(client.head().await.starts_with("HTTP/1.1 "));
        assert_eq!(client.send(&get("/livez", "")).await.status, 200, "{path}");
    }
    assert!(upstream.seen().requests.is_empty());
}

/// A gateway that accepts bodies of at most 1 MiB.
async fn small_body_limit() -> (Upstream, TestGateway) {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start_with(&[&upstream], Options::flags(&["--max-body-mb=1"])).await;
    (upstream, gateway)
}

#[tokio::test]
async fn an_oversized_body_is_rejected_while_it_is_received() {
    let (upstream, gateway) = small_body_limit().await;
    let length = authorised(&format!("content-length: {}\r\n", 64 << 20));
    let chunked = authorised("transfer-encoding: chunked\r\n");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for bytes in [
        // The client sends no more of the body.
        [length.as_str(), "{"].concat(),
        [length.as_str(), &"x".repeat(8 << 20)].concat(),
        [chunked.as_str(), &chunk.repeat(128)].concat(),
    ] {
        let response = until_closed(gateway.address, bytes.as_bytes()).await;
        assert_eq!(status(&response), Some(413));
        assert!(response.contains("payload_too_large"));
    }
    assert!(upstream.seen().requests.is_empty());
    assert!(gateway.finish().await.is_empty());
}

#[tokio::test]
async fn a_client_that_reads_only_after_sending_receives_the_error() {
    let (_upstream, gateway) = small_body_limit().await;
    for excess in [1, 200 << 10] {
        let body = "x".repeat((1 << 20) + excess);
        let mut client = gateway.client().await;
        client
            .write(authorised(&format!("content-length: {}\r\n", body.len())).as_bytes())
            .await;
        client.write(body.as_bytes()).await;
        assert_eq!(client.reply().await.status, 413);
    }
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_accepted() {
    let (upstream, gateway) = small_body_limit().await;
    let pad = "x".repeat((1 << 20) - "{\"model\":\"small\",\"p\":\"\"}".len());
    let body = format!("{{\"model\":\"small\",\"p\":\"{pad}\"}}");
    assert_eq!(gateway.chat(&body).await.text(), JSON);
    assert_eq!(upstream.request().body.len(), 1 << 20);
}

#[tokio::test]
async fn an_oversized_head_is_431_or_414() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let field = format!("x-long: {}\r\n", "x".repeat(1 << 20));
    let fields = "x-a: b\r\n".repeat(200);
    let target = "x".repeat(200 << 10);
    for (bytes, expected) in [
        (authorised(&field), 431),
        (authorised(&fields), 431),
        (format!("GET /{target} HTTP/1.1\r\nhost: g\r\n\r\n"), 414),
    ] {
        let response = until_closed(gateway.address, bytes.as_bytes()).await;
        assert_eq!(status(&response), Some(expected));
    }
    assert!(upstream.seen().requests.is_empty());
}

#[tokio::test]
async fn an_endless_head_closes_the_connection() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    for part in ["x", "x-a: b\r\n"] {
        let bytes = format!("{PATH}x-long: {}", part.repeat((16 << 20) / part.len()));
        let response = until_closed(gateway.address, bytes.as_bytes()).await;
        assert_eq!(status(&response), Some(431));
    }
}

#[tokio::test]
async fn blank_lines_between_requests_are_ignored() {
    let upstream = Upstream::start([json_response("200 OK", JSON)]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client: Client = gateway.client().await;
    client
        .write(&[chat(WHOLE).as_slice(), b"\r\n", &chat(WHOLE)].concat())
        .await;
    for _ in 0..2 {
        assert_eq!(client.reply().await.text(), JSON);
    }
}

/// In HTTP/1.0, the end of the connection ends a response.
#[tokio::test]
async fn an_aborted_response_does_not_look_complete_to_an_http_1_0_client() {
    let barrier = Barrier::new();
    let begun = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n";
    let script = vec![
        Step::Send(begun.into()),
        Step::Wait(barrier.clone()),
        Step::Close,
    ];
    let upstream = Upstream::start([script]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    let request = String::from_utf8(chat(WHOLE)).unwrap();
    let request = request.replace("HTTP/1.1", "HTTP/1.0");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"{\"a\":") {
        let read = soon("the beginning", client.read_buf(&mut response)).await;
        assert!(read.unwrap() > 0);
    }
    barrier.cancel();
    let end = soon("the end", client.read_buf(&mut response)).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}
