//! The HTTP client for the control plane. Every request has a timeout, which
//! covers the body, and a response size limit.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fastllm_contract::Secret;
use fastllm_process::error::Chain;
use http::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response};
use url::Url;

/// Base address of the control plane's endpoints.
#[derive(Clone, PartialEq, Eq)]
pub struct ControlUrl(Url);

impl ControlUrl {
    /// Accepts the base address and the address of the snapshot endpoint.
    pub fn new(mut url: Url) -> Result<Self, &'static str> {
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("expected an http or https address");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the address must not contain credentials");
        }
        url.set_query(None);
        url.set_fragment(None);
        let path = url.path().trim_end_matches('/');
        let base = path.strip_suffix("/snapshot").unwrap_or(path);
        let base = format!("{}/", base.trim_end_matches('/'));
        url.set_path(&base);
        Ok(Self(url))
    }

    /// `name` may include a query.
    fn endpoint(&self, name: &str) -> Url {
        let mut url = self.0.clone();
        let (name, query) = match name.split_once('?') {
            Some((name, query)) => (name, Some(query)),
            None => (name, None),
        };
        url.set_path(&format!("{}{name}", self.0.path()));
        url.set_query(query);
        url
    }
}

impl fmt::Debug for ControlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl fmt::Display for ControlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// Why a request to the control plane failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// The connection failed, timed out or was aborted. Contains no address.
    #[error("{0}")]
    Transport(String),
    /// The response has an unexpected status.
    #[error("control plane responded with status {0}")]
    Status(u16),
    /// The response exceeds its size limit.
    #[error("control plane response exceeds {0} bytes")]
    TooLarge(usize),
    /// The response body is invalid.
    #[error("control plane response is invalid: {0}")]
    Unreadable(String),
}

impl From<reqwest::Error> for ControlError {
    fn from(error: reqwest::Error) -> Self {
        // The cause of a failed connection is in its sources.
        Self::Transport(Chain(&error.without_url()).to_string())
    }
}

/// The timeout for connecting to control.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Client of the control plane. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ControlClient {
    client: reqwest::Client,
    base: ControlUrl,
}

impl ControlClient {
    /// Fails if the token is not a valid header value or TLS cannot be
    /// configured.
    pub(crate) fn new(
        base: ControlUrl,
        token: &Secret,
        tls: rustls::ClientConfig,
    ) -> Result<Self, ControlError> {
        let mut value =
            HeaderValue::try_from(format!("Bearer {}", token.expose())).map_err(|_| {
                ControlError::Unreadable("the proxy token is not a valid header value".to_owned())
            })?;
        value.set_sensitive(true);
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .default_headers(HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("fastllm-gateway/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .build()?;
        Ok(Self { client, base })
    }

    /// A request to one endpoint; `timeout` covers the whole request.
    pub(crate) fn request(&self, method: Method, name: &str, timeout: Duration) -> RequestBuilder {
        self.client
            .request(method, self.base.endpoint(name))
            .timeout(timeout)
    }

    /// Posts a JSON body and returns the status and the small response body.
    pub(crate) async fn post(
        &self,
        name: &str,
        json: Bytes,
        timeout: Duration,
    ) -> Result<(u16, Bytes), ControlError> {
        self.post_limited(name, json, timeout, 64 << 10).await
    }

    /// Like `post`, with a response of at most `limit` bytes.
    pub(crate) async fn post_limited(
        &self,
        name: &str,
        json: Bytes,
        timeout: Duration,
        limit: usize,
    ) -> Result<(u16, Bytes), ControlError> {
        let response = self
            .request(Method::POST, name, timeout)
            .header(header::CONTENT_TYPE, "application/json")
            .body(json)
            .send()
            .await?;
        let status = response.status().as_u16();
        Ok((status, read_limited(response, limit).await?))
    }
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_limited(
    mut response: Response,
    limit: usize,
) -> Result<Bytes, ControlError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Err(ControlError::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::ControlUrl;

    #[test]
    fn base_and_snapshot_addresses_are_equivalent() {
        for given in [
            "http://control:4001",
            "http://control:4001/",
            "http://control:4001/snapshot",
            "http://control:4001/snapshot/",
            "http://control:4001/snapshot?x=1",
        ] {
            let url = ControlUrl::new(Url::parse(given).unwrap()).unwrap();
            assert_eq!(
                url.endpoint("usage").as_str(),
                "http://control:4001/usage",
                "{given}"
            );
        }
        let below = ControlUrl::new(Url::parse("https://x/llm/snapshot").unwrap()).unwrap();
        assert_eq!(
            below.endpoint("snapshot?wait=30s").as_str(),
            "https://x/llm/snapshot?wait=30s"
        );
    }

    #[test]
    fn addresses_with_credentials_or_unsupported_schemes_are_rejected() {
        for given in [
            "http://user:word@control/",
            "ftp://control/",
            "unix:/socket",
        ] {
            assert!(
                ControlUrl::new(Url::parse(given).unwrap()).is_err(),
                "{given}"
            );
        }
    }
}
