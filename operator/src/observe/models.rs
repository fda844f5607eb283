//! How many models a gateway serves, asked at its status port.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::redirect::Policy;
use serde::Deserialize;

use super::{ReadFailure, ReadOutcome};
use crate::names::STATUS_PORT;

/// Longest time that a gateway may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer that is read, in bytes.
const LIMIT: usize = 4 << 20;

/// Asks a gateway how many models it serves.
pub trait ModelsProbe: Send + Sync + 'static {
    /// Number of models at the gateway pod with this address.
    fn models(&self, ip: &str) -> impl Future<Output = ReadOutcome<usize>> + Send;
}

/// Asks over HTTP.
#[derive(Clone, Debug)]
pub struct HttpModelsProbe(reqwest::Client);

#[derive(Deserialize)]
struct Health {
    models: Vec<serde::de::IgnoredAny>,
}

impl HttpModelsProbe {
    /// # Errors
    /// If the HTTP client cannot be set up.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            // Whoever can label a pod could send us anywhere.
            .redirect(Policy::none())
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self(client))
    }

    async fn ask(&self, gateway: SocketAddr) -> Result<usize, &'static str> {
        let url = format!("http://{gateway}/health");
        let unreachable = "the gateway's status port did not answer";
        let mut answer = self.0.get(url).send().await.map_err(|_| unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|_| unreachable)? {
            if body.len() + chunk.len() > LIMIT {
                return Err("the gateway's status port answered at too great a length");
            }
            body.extend_from_slice(&chunk);
        }
        let health: Health = serde_json::from_slice(&body)
            .map_err(|_| "the gateway's status port answered something else")?;
        Ok(health.models.len())
    }
}

impl ModelsProbe for HttpModelsProbe {
    async fn models(&self, ip: &str) -> ReadOutcome<usize> {
        let Ok(ip) = ip.parse::<IpAddr>() else {
            return ReadOutcome::Unknown(ReadFailure::Failed("the gateway pod has no address"));
        };
        match self.ask(SocketAddr::new(ip, STATUS_PORT)).await {
            Ok(count) => ReadOutcome::Known(count),
            Err(what) => ReadOutcome::Unknown(ReadFailure::Failed(what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::HttpModelsProbe;

    /// Answers one request, and says what it was.
    async fn answer(listener: &TcpListener, with: &str) -> String {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let read = socket.read(&mut request).await.unwrap();
        socket.write_all(with.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        String::from_utf8_lossy(&request[..read]).into_owned()
    }

    async fn asked(with: &str) -> Result<usize, &'static str> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = listener.local_addr().unwrap();
        // Only fails if another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let probe = HttpModelsProbe::new().unwrap();
        let (request, found) = tokio::join!(answer(&listener, with), probe.ask(gateway));
        assert!(request.starts_with("GET /health "), "{request}");
        found
    }

    fn body(status: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    #[tokio::test]
    async fn a_gateway_without_a_healthy_backend_still_names_its_models() {
        let answer = body("503 Service Unavailable", r#"{"models": ["a", "b"]}"#);
        assert_eq!(asked(&answer).await, Ok(2));
    }

    #[tokio::test]
    async fn an_answer_without_models_is_not_taken_for_none() {
        assert!(asked(&body("503 Busy", r#"{"error": {}}"#)).await.is_err());
        assert_eq!(asked(&body("200 OK", r#"{"models": []}"#)).await, Ok(0));
    }

    #[tokio::test]
    async fn nobody_is_followed_elsewhere() {
        let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = elsewhere.local_addr().unwrap();
        let redirect = format!(
            "HTTP/1.1 302 Found\r\nlocation: http://{address}/health\r\ncontent-length: 0\r\n\r\n"
        );
        let models = body("200 OK", r#"{"models": ["a"]}"#);
        tokio::select! {
            found = asked(&redirect) => assert!(found.is_err()),
            request = answer(&elsewhere, &models) => panic!("followed: {request}"),
        }
    }
}
