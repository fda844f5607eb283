//! How many models a gateway serves, asked at its status port.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;

use super::{Read, ReadFailure};
use crate::build::STATUS_PORT;

/// Longest time that a gateway may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer that is read, in bytes.
const LIMIT: usize = 4 << 20;

/// Asks a gateway how many models it serves.
pub trait ModelsProbe: Send + Sync + 'static {
    /// Number of models at the gateway pod with this address.
    fn models(&self, ip: &str) -> impl Future<Output = Read<usize>> + Send;
}

/// Asks over HTTP.
#[derive(Clone, Debug)]
pub struct HttpModels(reqwest::Client);

#[derive(Deserialize)]
struct Health {
    #[serde(default)]
    models: Vec<serde::de::IgnoredAny>,
}

impl HttpModels {
    /// # Errors
    /// If the HTTP client cannot be set up.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self(client))
    }

    async fn ask(&self, ip: &str) -> Result<usize, &'static str> {
        let ip: IpAddr = ip.parse().map_err(|_| "the gateway pod has no address")?;
        let url = format!("http://{}/health", SocketAddr::new(ip, STATUS_PORT));
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

impl ModelsProbe for HttpModels {
    async fn models(&self, ip: &str) -> Read<usize> {
        match self.ask(ip).await {
            Ok(count) => Read::Known(count),
            Err(what) => Read::Unknown(ReadFailure::Failed(what)),
        }
    }
}
