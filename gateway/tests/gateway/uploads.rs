//! Uploaded forms that are forwarded while they are received.

use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{
    Client, Control, Exchange, KEY, ManualUpstream, Options, SnapshotContent, TOKEN, TestGateway,
    content, get, snapshot, soon,
};

const MODEL: &str =
    "--frontier\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n--frontier\r\n";
const FILE: &str = "content-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
const END: &str = "\r\n--frontier--\r\n";

/// Bytes that may follow the beginning while the upload can still be retried.
const REPLAYED: usize = 1 << 20;

fn beginning() -> String {
    [MODEL, FILE].concat()
}

fn head(framing: &str) -> Vec<u8> {
    format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\nx-api-key: {KEY}\r\n\
content-type: multipart/form-data; boundary=frontier\r\n{framing}\r\n"
    )
    .into_bytes()
}

/// The head of an upload whose file has this many bytes.
fn sized(file: usize) -> Vec<u8> {
    let length = beginning().len() + file + END.len();
    head(&format!("content-length: {length}\r\n"))
}

fn chunk(data: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", data.len()).into_bytes();
    chunk.extend_from_slice(data);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

fn ok(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Two backends of one model at this upstream, both named `vendor/whisper`.
fn two_backends(upstream: &ManualUpstream) -> SnapshotContent {
    let mut content = content(&[upstream.api_base("/a"), upstream.api_base("/b")]);
    for backend in &mut content.models[2].backends {
        "vendor/whisper".clone_into(&mut backend.upstream_model);
    }
    content
}

async fn start(flags: &[&str]) -> (ManualUpstream, TestGateway) {
    let upstream = ManualUpstream::start().await;
    let gateway = TestGateway::serving(&two_backends(&upstream), Options::flags(flags)).await;
    (upstream, gateway)
}

fn renamed(text: &str) -> String {
    text.replace("small", "vendor/whisper")
}

/// A client that has sent the beginning of a chunked upload, and the exchange
/// at the upstream that received it.
async fn begun(upstream: &mut ManualUpstream, gateway: &TestGateway) -> (Client, Exchange) {
    let mut client = gateway.client().await;
    client.write(&head("transfer-encoding: chunked\r\n")).await;
    client.write(&chunk(beginning().as_bytes())).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.chunk().await, renamed(&beginning()).as_bytes());
    (client, exchange)
}

/// Sends data and checks that it arrives.
async fn pass(client: &mut Client, exchange: &mut Exchange, data: &[u8]) {
    let sent = chunk(data);
    let arrives = async {
        let mut came = Vec::new();
        while came.len() < data.len() {
            came.extend(exchange.chunk().await);
        }
        came
    };
    let ((), came) = tokio::join!(client.write(&sent), arrives);
    assert!(came == data);
}

#[tokio::test]
async fn an_upload_with_content_length_keeps_a_content_length() {
    let (mut upstream, gateway) = start(&[]).await;
    let mut client = gateway.client().await;
    client.write(&sized(10)).await;
    client.write(beginning().as_bytes()).await;
    let mut exchange = upstream.next().await;
    let expected = renamed(&beginning());
    let length = (expected.len() + 10 + END.len()).to_string();
    assert!(
        exchange
            .head
            .contains(&format!("content-length: {length}\r\n"))
    );
    assert!(
        exchange
            .head
            .contains("content-type: multipart/form-data; boundary=frontier\r\n")
    );
    // All of this has reached the upstream before the client sends the file.
    assert_eq!(exchange.take(expected.len()).await, expected.as_bytes());
    client.write(b"01234").await;
    assert_eq!(exchange.take(5).await, b"01234");
    client.write(format!("56789{END}").as_bytes()).await;
    assert_eq!(
        exchange.take(5 + END.len()).await,
        format!("56789{END}").as_bytes()
    );
    exchange.respond(&ok("{\"text\":\"a\"}")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, &*reply.text()), (200, "{\"text\":\"a\"}"));
    // The connection can be reused for another request.
    assert_eq!(client.send(&get("/livez", "")).await.status, 200);
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(200)));
}

#[tokio::test]
async fn an_upload_of_unknown_length_is_chunked() {
    let (mut upstream, gateway) = start(&[]).await;
    let (mut client, mut exchange) = begun(&mut upstream, &gateway).await;
    assert!(exchange.head.contains("transfer-encoding: chunked\r\n"));
    pass(&mut client, &mut exchange, b"RIFF\r\n--front").await;
    pass(&mut client, &mut exchange, END.as_bytes()).await;
    client.write(b"0\r\n\r\n").await;
    assert!(exchange.chunk().await.is_empty());
    exchange.respond(&ok("{}")).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn a_client_that_expects_100_receives_it() {
    let (mut upstream, gateway) = start(&[]).await;
    let mut client = gateway.client().await;
    let framing = "transfer-encoding: chunked\r\nexpect: 100-continue\r\n";
    client.write(&head(framing)).await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write(&chunk(beginning().as_bytes())).await;
    let mut exchange = upstream.next().await;
    assert!(!exchange.head.contains("expect"));
    exchange.chunk().await;
    pass(&mut client, &mut exchange, END.as_bytes()).await;
    client.write(b"0\r\n\r\n").await;
    assert!(exchange.chunk().await.is_empty());
    exchange.respond(&ok("{}")).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn a_second_model_field_aborts_the_upload() {
    let (mut upstream, gateway) = start(&[]).await;
    let (mut client, mut exchange) = begun(&mut upstream, &gateway).await;
    let second = format!("\r\n{}", MODEL.replace("small", "forbidden"));
    client.write(&chunk(second.as_bytes())).await;
    let reply = client.reply().await;
    let (status, kind, code, param) = reply.error();
    assert_eq!((status, &*kind), (400, "invalid_request_error"));
    assert_eq!(
        (&*code, param.as_str()),
        ("ambiguous_parameter", Some("model"))
    );
    assert_eq!(exchange.until_disconnect().await, b"");
    assert!(!upstream.has_more());
    // This is not a failure of the backend.
    let metrics = gateway.get("/metrics").await.text();
    let errors: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("fastllm_backend_errors_total{"))
        .collect();
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|line| line.ends_with(" 0")), "{errors:?}");
}

#[tokio::test]
async fn an_aborted_form_is_never_complete_upstream() {
    let (mut upstream, gateway) = start(&[]).await;
    let (mut client, mut exchange) = begun(&mut upstream, &gateway).await;
    client.write(b"0\r\n\r\n").await;
    let (status, _, code, _) = client.reply().await.error();
    assert_eq!((status, &*code), (400, "invalid_form_data"));
    assert_eq!(exchange.until_disconnect().await, b"");
}

#[tokio::test]
async fn a_retry_sends_the_whole_upload_to_another_backend() {
    let (mut upstream, gateway) = start(&[]).await;
    let (mut client, mut first) = begun(&mut upstream, &gateway).await;
    pass(&mut client, &mut first, b"0123").await;
    first
        .respond(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")
        .await;
    let mut second = upstream.next().await;
    assert_ne!(first.head.split(' ').nth(1), second.head.split(' ').nth(1));
    let expected = renamed(&beginning()) + "0123";
    assert_eq!(second.chunk().await, expected.as_bytes());
    pass(&mut client, &mut second, b"4567").await;
    // It closes without a response; the first backend is retried, as no other is left.
    drop(second);
    pass_end(&mut client).await;
    assert_eq!(client.reply().await.status, 503);
    assert!(!upstream.has_more());
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(503)));
}

async fn pass_end(client: &mut Client) {
    client.write(&chunk(END.as_bytes())).await;
    client.write(b"0\r\n\r\n").await;
}

#[tokio::test]
async fn a_failure_beyond_the_retry_buffer_is_final() {
    for response in [Some("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"), None] {
        let (mut upstream, gateway) = start(&[]).await;
        let (mut client, mut exchange) = begun(&mut upstream, &gateway).await;
        pass(&mut client, &mut exchange, &vec![b'x'; REPLAYED + 1]).await;
        match response {
            Some(response) => exchange.respond(response.as_bytes()).await,
            None => drop(exchange),
        }
        let reply = client.reply().await;
        assert_eq!(reply.status, if response.is_some() { 503 } else { 502 });
        assert!(!upstream.has_more());
    }
}

#[tokio::test]
async fn an_upload_that_grows_too_large_is_aborted() {
    let (mut upstream, gateway) = start(&["--max-body-mb=1"]).await;
    let (mut client, mut exchange) = begun(&mut upstream, &gateway).await;
    let most = (1 << 20) - beginning().len();
    pass(&mut client, &mut exchange, &vec![b'x'; most]).await;
    client.write(&chunk(b"x")).await;
    assert_eq!(client.reply().await.error().2, "payload_too_large");
    assert_eq!(exchange.until_disconnect().await, b"");
    let mut client = gateway.client().await;
    client.write(&sized(1 << 20)).await;
    assert_eq!(client.reply().await.status, 413);
    assert!(!upstream.has_more());
}

#[tokio::test]
async fn a_client_that_leaves_aborts_the_upstream_request() {
    let (mut upstream, gateway) = start(&[]).await;
    let (client, mut exchange) = begun(&mut upstream, &gateway).await;
    drop(client);
    assert_eq!(exchange.until_disconnect().await, b"");
    // So does a client that leaves while it waits for its response.
    let (mut client, mut exchange) = begun(&mut upstream, &gateway).await;
    pass_end(&mut client).await;
    assert_eq!(exchange.chunk().await, END.as_bytes());
    assert!(exchange.chunk().await.is_empty());
    drop(client);
    assert_eq!(exchange.until_disconnect().await, b"");
    let events = gateway.finish().await;
    assert_eq!((events.len(), events[0].status), (1, Some(499)));
}

#[tokio::test]
async fn an_early_response_ends_the_upload() {
    let (mut upstream, gateway) = start(&[]).await;
    let mut client = gateway.client().await;
    client.write(&sized(8 << 20)).await;
    client.write(beginning().as_bytes()).await;
    let mut exchange = upstream.next().await;
    exchange
        .respond(b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\nno")
        .await;
    let reply = client.reply().await;
    assert_eq!((reply.status, &*reply.text()), (400, "no"));
    assert_eq!(reply.header("connection"), Some("close"));
    assert_eq!(
        exchange.until_disconnect().await,
        renamed(&beginning()).as_bytes()
    );
    client.close_its_side().await;
    assert!(client.is_closed().await);
    assert!(!upstream.has_more());
}

#[tokio::test]
async fn http2_uploads_behave_the_same() {
    let (mut upstream, gateway) = start(&[]).await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    let mut running = JoinSet::new();
    running.spawn(async move { connection.await.unwrap() });
    let request = http::Request::post("http://gateway/v1/audio/transcriptions")
        .header("x-api-key", KEY)
        .header("content-type", "multipart/form-data; boundary=frontier")
        .body(())
        .unwrap();
    let (response, mut body) = send.send_request(request, false).unwrap();
    body.send_data(Bytes::from(beginning()), false).unwrap();
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.chunk().await, renamed(&beginning()).as_bytes());
    body.send_data(Bytes::from("0123".to_owned() + END), true)
        .unwrap();
    assert_eq!(exchange.chunk().await, ("0123".to_owned() + END).as_bytes());
    assert!(exchange.chunk().await.is_empty());
    exchange.respond(&ok("{}")).await;
    assert_eq!(soon("a response", response).await.unwrap().status(), 200);
}

/// A gateway in its own process, killed at the end of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Process {
    /// The peak memory of the process, in bytes.
    fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
        kibibytes.parse::<usize>().unwrap() << 10
    }
}

#[tokio::test]
async fn a_large_upload_uses_little_memory() {
    const SIZE: usize = 256 << 20;
    const PART: usize = 1 << 20;
    let mut upstream = ManualUpstream::start().await;
    let control = Control::start(snapshot(&two_backends(&upstream))).await;
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let process = Command::new(env!("CARGO_BIN_EXE_fastllm-gateway"))
        .arg(format!("--port={}", address.port()))
        .arg(format!("--control-url={}", control.url()))
        .arg(format!("--proxy-token={TOKEN}"))
        .arg(format!(
            "--snapshot-cache={}",
            folder.path().join("s").display()
        ))
        .arg("--max-body-mb=512")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process(process);
    let mut client = soon("the gateway", async {
        loop {
            if TcpStream::connect(address).await.is_ok() {
                let mut client = Client::connect(address).await;
                if client.send(&get("/readyz", "")).await.status == 200 {
                    return client;
                }
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let before = process.peak();
    client.write(&sized(SIZE)).await;
    client.write(beginning().as_bytes()).await;
    let mut exchange = upstream.next().await;
    exchange.take(renamed(&beginning()).len()).await;
    let part = vec![b'x'; PART];
    for _ in 0..SIZE / PART {
        let ((), came) = tokio::join!(client.write(&part), exchange.take(PART));
        assert!(came == part);
    }
    client.write(END.as_bytes()).await;
    assert_eq!(exchange.take(END.len()).await, END.as_bytes());
    exchange.respond(&ok("{}")).await;
    assert_eq!(client.reply().await.status, 200);
    let grown = process.peak() - before;
    assert!(grown < 16 << 20, "{grown} bytes more");
}
