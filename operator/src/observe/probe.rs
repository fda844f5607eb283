//! What the planes' pods report about themselves.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::redirect::Policy;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{ReadFailure, ReadOutcome};
use crate::client::AGENT;
use crate::names::{ADMIN_PORT, STATUS_PORT};

/// Timeout of a request to a pod.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a response body, in bytes.
const MAX_BODY: usize = 4 << 20;
/// The states of the database in which nothing is wrong.
const USABLE: [&str; 2] = ["ok", "not connected yet"];

/// Reads what the planes' pods report about themselves.
pub trait PlaneProbe: Send + Sync + 'static {
    /// Number of models at the gateway pod with this address.
    fn models(&self, ip: &str) -> impl Future<Output = ReadOutcome<usize>> + Send;

    /// Why the control plane's pod with this address cannot use its database. `None` if
    /// it can, or if the pod does not respond.
    fn database_problem(&self, ip: &str) -> impl Future<Output = Option<String>> + Send;
}

/// Reads it over HTTP.
#[derive(Clone, Debug)]
pub struct HttpPlaneProbe(reqwest::Client);

/// The part of a gateway's `/health` that is used.
#[derive(Deserialize)]
struct GatewayHealth {
    models: Vec<serde::de::IgnoredAny>,
}

/// The part of the control plane's `/readyz` that is used.
#[derive(Deserialize)]
struct ControlReadiness {
    database: String,
}

/// Why the body of a response is unknown.
#[derive(Clone, Copy, Debug)]
enum FetchError {
    Unreachable,
    TooLarge,
    Unknown,
}

impl HttpPlaneProbe {
    /// Creates the HTTP client.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .user_agent(AGENT)
            .no_proxy()
            // A forged pod must not be able to redirect the operator.
            .redirect(Policy::none())
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self(client))
    }

    async fn fetch<T: DeserializeOwned>(
        &self,
        pod: SocketAddr,
        path: &str,
    ) -> Result<T, FetchError> {
        let url = format!("http://{pod}{path}");
        let unreachable = |_| FetchError::Unreachable;
        let mut response = self.0.get(url).send().await.map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(FetchError::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&body).map_err(|_| FetchError::Unknown)
    }

    async fn models_at(&self, gateway: SocketAddr) -> Result<usize, ReadFailure> {
        let health: Result<GatewayHealth, _> = self.fetch(gateway, "/health").await;
        health.map(|health| health.models.len()).map_err(|error| {
            ReadFailure::Failed(match error {
                FetchError::Unreachable => "the gateway's status port did not respond",
                FetchError::TooLarge => "the response of the gateway's status port is too large",
                FetchError::Unknown => "the gateway's status port sent an unknown response",
            })
        })
    }

    async fn database_problem_at(&self, control: SocketAddr) -> Option<String> {
        let readiness: ControlReadiness = self.fetch(control, "/readyz").await.ok()?;
        let problem = readiness.database;
        (!USABLE.contains(&problem.as_str())).then_some(problem)
    }
}

impl PlaneProbe for HttpPlaneProbe {
    async fn models(&self, ip: &str) -> ReadOutcome<usize> {
        let Ok(ip) = ip.parse::<IpAddr>() else {
            return ReadOutcome::Unknown(ReadFailure::Failed("the gateway pod has no address"));
        };
        match self.models_at(SocketAddr::new(ip, STATUS_PORT)).await {
            Ok(count) => ReadOutcome::Known(count),
            Err(failure) => ReadOutcome::Unknown(failure),
        }
    }

    async fn database_problem(&self, ip: &str) -> Option<String> {
        let address = SocketAddr::new(ip.parse().ok()?, ADMIN_PORT);
        self.database_problem_at(address).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::{AGENT, HttpPlaneProbe, ReadFailure};

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
        let probe = HttpPlaneProbe::new().unwrap();
        let (request, found) = tokio::join!(respond(&listener, response), probe.models_at(gateway));
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

    async fn database_problem(response: &str) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let control = listener.local_addr().unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let probe = HttpPlaneProbe::new().unwrap();
        let (request, found) = tokio::join!(
            respond(&listener, response),
            probe.database_problem_at(control)
        );
        assert!(request.starts_with("GET /readyz "), "{request}");
        found
    }

    #[tokio::test]
    async fn the_control_plane_reports_why_it_cannot_use_its_database() {
        let answer = |database: &str| {
            let text = format!(r#"{{"status": "no snapshot", "database": "{database}"}}"#);
            body("503 Service Unavailable", &text)
        };
        let refused = database_problem(&answer("connection refused")).await;
        assert_eq!(refused.as_deref(), Some("connection refused"));
        assert_eq!(database_problem(&answer("ok")).await, None);
        assert_eq!(database_problem(&answer("not connected yet")).await, None);
        assert_eq!(database_problem(&body("200 OK", "{}")).await, None);
    }
}
