//! Clients with TLS: both protocols, certificate renewal, misbehaving clients.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{
    Barrier, KEY, Options, Reader, Step, TestGateway, Upstream, chat, content, events, get,
    json_response, soon,
};

const BODY: &str = "{\"model\":\"small\"}";
const STREAMED: &str = "{\"model\":\"small\",\"stream\":true}";
const EVENT: &str = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";

/// Writes a new certificate for `localhost`.
fn certify(folder: &Path) -> CertifiedKey<KeyPair> {
    let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    made
}

/// A gateway that serves TLS, with a separate status port.
async fn start(upstream: &Upstream, folder: &TempDir) -> TestGateway {
    let file = |name: &str| folder.path().join(name).display().to_string();
    let flags = [
        format!("--gateway-tls-cert={}", file("tls.crt")),
        format!("--gateway-tls-key={}", file("tls.key")),
        "--status-port=0".to_owned(),
    ];
    let options = Options::flags(&flags.each_ref().map(String::as_str));
    let control =
        crate::support::Control::start(crate::support::snapshot(&content(&[upstream.api_base()])))
            .await;
    let gateway = TestGateway::with_control(control, options);
    let status = gateway.status_address.unwrap();
    gateway
        .until("readiness", async || {
            let mut client = crate::support::Client::connect(status).await;
            client.send(&get("/readyz", "")).await.status == 200
        })
        .await;
    gateway
}

async fn try_connect(
    gateway: &TestGateway,
    trusted: &CertificateDer<'static>,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().into())
        .collect();
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    soon("the handshake", connector.connect(name, stream)).await
}

async fn connect(
    gateway: &TestGateway,
    made: &CertifiedKey<KeyPair>,
    protocols: &[&str],
) -> TlsStream<TcpStream> {
    try_connect(gateway, made.cert.der(), protocols)
        .await
        .unwrap()
}

/// Reads to the end, which must be a `close_notify`.
async fn rest(stream: &mut TlsStream<TcpStream>) -> String {
    let mut bytes = Vec::new();
    soon("the end", stream.read_to_end(&mut bytes))
        .await
        .expect("a close_notify");
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn both_protocols_are_served() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = tempfile::tempdir().unwrap();
    let made = certify(folder.path());
    let gateway = start(&upstream, &folder).await;

    for protocols in [&["http/1.1"][..], &[]] {
        let stream = connect(&gateway, &made, protocols).await;
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = Reader::new(reader);
        for _ in 0..3 {
            writer.write_all(&chat(BODY)).await.unwrap();
            let response = soon("a response", reader.message()).await.unwrap();
            assert_eq!(
                (response.word(1), response.body.as_slice()),
                ("200", &b"{}"[..])
            );
        }
    }

    let stream = connect(&gateway, &made, &["h2", "http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    for _ in 0..3 {
        let head = http::Request::post("https://localhost/v1/chat/completions")
            .header("authorization", format!("Bearer {KEY}"))
            .body(())
            .unwrap();
        let (response, mut body) = requests.send_request(head, false).unwrap();
        body.send_data(Bytes::from(BODY), true).unwrap();
        let response = soon("a response", response).await.unwrap();
        assert_eq!(response.status(), 200);
        let bytes = soon("its body", response.into_body().data()).await;
        assert_eq!(bytes.unwrap().unwrap(), "{}");
    }
}

#[tokio::test]
async fn a_connection_ends_with_close_notify() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = tempfile::tempdir().unwrap();
    let made = certify(folder.path());
    let gateway = start(&upstream, &folder).await;
    let mut stream = connect(&gateway, &made, &[]).await;
    let last = get("/livez", "connection: close\r\n");
    stream.write_all(&last).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 200"));

    let mut idle = connect(&gateway, &made, &[]).await;
    idle.write_all(&get("/livez", "")).await.unwrap();
    let mut first = [0; 12];
    soon("a response", idle.read_exact(&mut first))
        .await
        .unwrap();
    gateway.stop();
    rest(&mut idle).await;
}

#[tokio::test]
async fn a_renewed_certificate_is_served_and_running_streams_continue() {
    let barrier = Barrier::new();
    let script = vec![
        Step::Send(events(&[EVENT], false)),
        Step::Wait(barrier.clone()),
        Step::Send(format!("{:x}\r\n{EVENT}\r\n0\r\n\r\n", EVENT.len()).into_bytes()),
    ];
    let upstream = Upstream::start([script]).await;
    let folder = tempfile::tempdir().unwrap();
    let before = certify(folder.path());
    let gateway = start(&upstream, &folder).await;
    let stream = connect(&gateway, &before, &[]).await;
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = Reader::new(reader);
    writer.write_all(&chat(STREAMED)).await.unwrap();
    soon("the head", reader.head()).await.unwrap();
    assert_eq!(
        soon("an event", reader.chunk()).await.unwrap(),
        EVENT.as_bytes()
    );

    let after = certify(folder.path());
    gateway
        .until("the new certificate", async || {
            try_connect(&gateway, after.cert.der(), &[]).await.is_ok()
        })
        .await;
    assert!(try_connect(&gateway, before.cert.der(), &[]).await.is_err());
    barrier.cancel();
    assert_eq!(
        soon("an event", reader.chunk()).await.unwrap(),
        EVENT.as_bytes()
    );
    assert_eq!(soon("the end", reader.chunk()).await, Some(Vec::new()));
}

#[tokio::test]
async fn stalled_and_invalid_handshakes_do_not_block_other_clients() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = tempfile::tempdir().unwrap();
    let made = certify(folder.path());
    let gateway = start(&upstream, &folder).await;
    let mut others = Vec::new();
    for part in [&b""[..], b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"] {
        for _ in 0..20 {
            let mut other = TcpStream::connect(gateway.address).await.unwrap();
            other.write_all(part).await.unwrap();
            others.push(other);
        }
    }
    let mut stream = connect(&gateway, &made, &[]).await;
    let last = get("/livez", "connection: close\r\n");
    stream.write_all(&last).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_handshake() {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let folder = tempfile::tempdir().unwrap();
    let made = certify(folder.path());
    let mut gateway = start(&upstream, &folder).await;
    // The connection of a later client has been accepted after this one.
    let silent = TcpStream::connect(gateway.address).await.unwrap();
    drop(connect(&gateway, &made, &["http/1.1"]).await);
    gateway.stop();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(5), gateway.ended()).await;
    assert!(ended.is_ok(), "the shutdown waits for a handshake");
    drop(silent);
}
