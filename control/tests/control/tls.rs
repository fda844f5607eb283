use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::harness::{Control, Database, PASSWORD, command, set_password};

/// Sends one request over TLS and returns the whole response.
async fn exchange(control: &Control, connector: &TlsConnector, request: &str) -> String {
    let address = control.base.trim_start_matches("https://");
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("control.example").unwrap();
    let mut stream = connector.connect(name, stream).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test]
async fn admin_port_supports_tls_and_silent_clients_block_nobody() {
    let database = Database::create().await;
    assert!(set_password(&database, "root", &[]).status.success());
    let directory = TempDir::new().unwrap();
    let made = rcgen::generate_simple_self_signed(["control.example".to_owned()]).unwrap();
    let (cert, key) = (directory.path().join("cert"), directory.path().join("key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = [
        format!("--tls-cert={}", cert.display()),
        format!("--tls-key={}", key.display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let control = Control::launch_command(command(&database.url(None)), &flags, "https").await;
    assert!(!control.log().contains("without TLS"));

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));

    let address = control.base.trim_start_matches("https://");
    let _silent = TcpStream::connect(address).await.unwrap();
    let ready = "GET /readyz HTTP/1.1\r\nhost: control.example\r\nconnection: close\r\n\r\n";
    crate::harness::eventually("it is ready", async || {
        let response = exchange(&control, &connector, ready).await;
        response.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;
    let body = json!({ "name": "root", "password": PASSWORD }).to_string();
    let login = format!(
        "POST /login HTTP/1.1\r\nhost: control.example\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let response = exchange(&control, &connector, &login).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("Max-Age=43200; Secure\r\n"), "{response}");
}
