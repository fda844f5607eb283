//! The client of the API server.

use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::USER_AGENT;
use kube::{Client, Config};

/// The `User-Agent` of requests to the API server and to gateways.
pub const AGENT: &str = concat!("fastllm-operator/", env!("CARGO_PKG_VERSION"));

/// How long a response may be silent. The API server ends a watch after 290 seconds;
/// the initial list of a watch has no other timeout.
const SILENCE: Duration = Duration::from_secs(305);

/// A configuration whose requests have the operator's `User-Agent`, and whose
/// responses do not stay incomplete for ever.
#[must_use]
pub fn identified(mut config: Config) -> Config {
    let agent = HeaderValue::from_static(AGENT);
    config.headers.push((USER_AGENT, agent));
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    config
}

/// Connects to the API server of the kubeconfig or of the pod's cluster.
///
/// # Errors
/// If there is no configuration, or if it is invalid.
pub async fn connect() -> Result<Client, kube::Error> {
    let config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    Client::try_from(identified(config))
}

#[cfg(test)]
mod tests {
    use kube::Config;

    use super::{AGENT, identified};

    #[test]
    fn requests_identify_the_operator_and_its_version() {
        let config = identified(Config::new("https://localhost".parse().unwrap()));
        let (name, value) = &config.headers[0];
        assert_eq!(
            (name.as_str(), value.to_str().unwrap()),
            ("user-agent", AGENT)
        );
        assert!(config.read_timeout.is_some() && config.reset_reader_on_write);
        let (product, version) = AGENT.split_once('/').unwrap();
        assert_eq!(product, "fastllm-operator");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }
}
