//! Upstreams behind TLS: trusted by `--ca-bundle`, and not without.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncWriteExt, split};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::support::{Options, Reader, Rig, content};

const BODY: &str = "{\"model\":\"small\"}";

/// Answers every request with an empty object; gives the certificate, too.
async fn upstream(tasks: &mut JoinSet<()>) -> (SocketAddr, String) {
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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
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
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    writer.write_all(answer).await.unwrap();
                    writer.flush().await.unwrap();
                }
            });
        }
    });
    (address, cert.pem())
}

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_named() {
    let mut tasks = JoinSet::new();
    let (address, pem) = upstream(&mut tasks).await;
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("ca.pem");
    std::fs::write(&bundle, pem).unwrap();
    let content = content(&[format!("https://localhost:{}/v1", address.port())]);

    let ca = format!("--ca-bundle={}", bundle.display());
    let trusting = Rig::serving(&content, Options::flags(&[&ca, "--health-interval=1"])).await;
    // The last one is more than sockets hold.
    for pad in [0, 0, 24 << 20] {
        let body = format!("{{\"model\":\"small\",\"pad\":\"{}\"}}", "x".repeat(pad));
        assert_eq!(trusting.chat(&body).await.text(), "{}");
    }
    assert_eq!(trusting.get("/health").await.status, 200);

    let wary = Rig::serving(&content, Options::flags(&["--health-interval=1"])).await;
    let reply = wary.chat(BODY).await;
    assert_eq!(reply.error().2, "upstream_unavailable");
    // Probes do not trust it either.
    wary.until("red health", async || {
        wary.get("/health").await.status == 503
    })
    .await;
    assert_eq!(trusting.get("/health").await.status, 200);
}
