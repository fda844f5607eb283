//! The number of models that a gateway serves, read from its status port.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::redirect::Policy;
use serde::Deserialize;

use super::{ReadFailure, ReadOutcome};
use crate::client::AGENT;
use crate::names::STATUS_PORT;

/// Timeout of a request to a gateway.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a response body, in bytes.
const MAX_BODY: usize = 4 << 20;

/// Reads the number of models that a gateway serves.
pub trait ModelsProbe: Send + Sync + 'static {
    /// Number of models at the gateway pod with this address.
    fn models(&self, ip: &str) -> impl Future<Output = ReadOutcome<usize>> + Send;
}

/// Reads the number over HTTP.
#[derive(Clone, Debug)]
pub struct HttpModelsProbe(reqwest::Client);

#[derive(Deserialize)]
struct Health {
    models: Vec<serde::de::IgnoredAny>,
}

impl HttpModelsProbe {
    /// Creates the HTTP client.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .user_agent(AGENT)
            .no_proxy()
            // A forged gateway pod must not be able to redirect the operator.
            .redirect(Policy::none())
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self(client))
    }

    async fn fetch(&self, gateway: SocketAddr) -> Result<usize, ReadFailure> {
        let url = format!("http://{gateway}/health");
        let unreachable = |_| ReadFailure::Failed("the gateway's status port did not respond");
        let mut response = self.0.get(url).send().await.map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(ReadFailure::Failed(
                    "the response of the gateway's status port is too large",
                ));
            }
            body.extend_from_slice(&chunk);
        }
        let health: Health = serde_json::from_slice(&body).map_err(|_| {
            ReadFailure::Failed("the gateway's status port sent an unknown response")
        })?;
        Ok(health.models.len())
    }
}

impl ModelsProbe for HttpModelsProbe {
    async fn models(&self, ip: &str) -> ReadOutcome<usize> {
        let Ok(ip) = ip.parse::<IpAddr>() else {
            return ReadOutcome::Unknown(ReadFailure::Failed("the gateway pod has no address"));
        };
        match self.fetch(SocketAddr::new(ip, STATUS_PORT)).await {
            Ok(count) => ReadOutcome::Known(count),
            Err(failure) => ReadOutcome::Unknown(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::{AGENT, HttpModelsProbe, ReadFailure};

    /// Sends one response, and returns the request.
    async fn respond(listener: &TcpListener, response: &str) -> String {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let read = socket.read(&mut request).await.unwrap();
        socket.write_all(response.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        String::from_utf8_lossy(&request[..read]).into_owned()
    }

    async fn fetch(response: &str) -> Result<usize, ReadFailure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = listener.local_addr().unwrap();
        // Fails only if another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let probe = HttpModelsProbe::new().unwrap();
        let (request, found) = tokio::join!(respond(&listener, response), probe.fetch(gateway));
        assert!(request.starts_with("GET /health "), "{request}");
        assert!(
            request.contains(&format!("user-agent: {AGENT}\r\n")),
            "{request}"
        );
        found
    }

    fn body(status: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    #[tokio::test]
    async fn a_gateway_without_a_healthy_backend_still_lists_its_models() {
        let response = body("503 Service Unavailable", r#"{"models": ["a", "b"]}"#);
        assert_eq!(fetch(&response).await, Ok(2));
    }

    #[tokio::test]
    async fn a_response_without_a_list_of_models_is_an_error() {
        assert!(fetch(&body("503 Busy", r#"{"error": {}}"#)).await.is_err());
        assert_eq!(fetch(&body("200 OK", r#"{"models": []}"#)).await, Ok(0));
    }

    #[tokio::test]
    async fn redirects_are_not_followed() {
        let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = elsewhere.local_addr().unwrap();
        let redirect = format!(
            "HTTP/1.1 302 Found\r\nlocation: http://{address}/health\r\ncontent-length: 0\r\n\r\n"
        );
        let models = body("200 OK", r#"{"models": ["a"]}"#);
        tokio::select! {
            found = fetch(&redirect) => assert!(found.is_err()),
            request = respond(&elsewhere, &models) => panic!("the redirect was followed: {request}"),
        }
    }
}
