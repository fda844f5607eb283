//! Upstreams with TLS: trusted only with `--ca-bundle`.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncWriteExt, split};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::support::{Options, Reader, TestGateway, content};

const BODY: &str = "{\"model\":\"small\"}";

/// Responds to every request with an empty object; also returns the
/// certificate. Its receive buffer is small.
fn upstream(tasks: &mut JoinSet<()>) -> (SocketAddr, String) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(64).unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let (reader, mut writer) = split(stream);
                let mut reader = Reader::new(reader);
                while reader.message().await.is_some() {
                    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    writer.write_all(response).await.unwrap();
                    writer.flush().await.unwrap();
                }
            });
        }
    });
    (address, cert.pem())
}

#[tokio::test]
async fn a_configured_private_authority_is_trusted() {
    let mut tasks = JoinSet::new();
    let (address, pem) = upstream(&mut tasks);
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("ca.pem");
    std::fs::write(&bundle, pem).unwrap();
    let content = content(&[format!("https://localhost:{}/v1", address.port())]);

    let ca = format!("--ca-bundle={}", bundle.display());
    let trusting =
        TestGateway::serving(&content, Options::flags(&[&ca, "--health-interval=1"])).await;
    for _ in 0..3 {
        assert_eq!(trusting.chat(BODY).await.text(), "{}");
    }
    assert_eq!(trusting.get("/health").await.status, 200);

    let wary = TestGateway::serving(&content, Options::flags(&["--health-interval=1"])).await;
    let reply = wary.chat(BODY).await;
    assert_eq!(reply.error().2, "upstream_unavailable");
    // Probes do not trust it either.
    wary.until("failing health", async || {
        wary.get("/health").await.status == 503
    })
    .await;
    assert_eq!(trusting.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_request_is_flushed_completely() {
    let mut tasks = JoinSet::new();
    let (address, pem) = upstream(&mut tasks);
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("ca.pem");
    std::fs::write(&bundle, pem).unwrap();
    let content = content(&[format!("https://localhost:{}/v1", address.port())]);
    let ca = format!("--ca-bundle={}", bundle.display());
    let gateway = TestGateway::serving(&content, Options::flags(&[&ca])).await;
    // More than the socket buffers; TLS buffers a varying rest.
    for n in 0..16 {
        let pad = "x".repeat((4 << 20) + n * 5_000);
        let body = format!("{{\"model\":\"small\",\"pad\":\"{pad}\"}}");
        assert_eq!(gateway.chat(&body).await.text(), "{}");
    }
}
