use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fastllm_contract::{Backend as Described, BackendId, Concurrency, Protocol, Secret};
use http::header::{HeaderName, HeaderValue};
use http::uri::PathAndQuery;

use super::target::{InvalidTemplate, Location};
use super::{
    BackendMetrics, BackendState, InFlight, InvalidHealthCheck, Probe, credentials, headers,
};

/// One upstream address of a model, checked and ready for requests.
#[derive(Debug)]
pub struct Backend {
    id: BackendId,
    api_base: Arc<str>,
    location: Location,
    upstream_model: Arc<str>,
    auth: Option<(HeaderName, HeaderValue)>,
    extra_headers: Vec<(HeaderName, HeaderValue)>,
    secrets: Arc<[Secret]>,
    weight: u32,
    draining: bool,
    default_max_tokens: Option<u32>,
    limit: Option<ConcurrencyLimit>,
    probe: Option<Probe>,
    state: Arc<BackendState>,
    metrics: OnceLock<Arc<dyn BackendMetrics>>,
}

/// Concurrency limit and queue of a backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConcurrencyLimit {
    /// Maximum number of requests in flight.
    pub(super) max: u64,
    /// Maximum number of queued requests.
    pub(super) max_queued: usize,
    /// Maximum time in the queue.
    pub(super) timeout: Duration,
}

/// The origin of connections: backends of one origin share them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether TLS is used.
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
}

/// Why a backend of a snapshot is skipped. The texts contain no part of the
/// address or the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBackend {
    /// Not an absolute http or https address.
    #[error("api_base is not an http or https address with a host")]
    Address,
    /// The address contains a user name or password.
    #[error("api_base holds credentials; they belong into the credential field")]
    Userinfo,
    /// The address contains a query.
    #[error("api_base holds a query, which is not forwarded")]
    Query,
    /// Not a header name that may carry a credential.
    #[error("auth_header is not a header name that may carry a credential")]
    AuthHeader,
    /// Credential or scheme contain bytes that are invalid in a header field.
    #[error("credential or auth_scheme cannot be written into a header")]
    Credential,
    /// A wire format that this release does not support.
    #[error("the wire format is not supported by this release")]
    Protocol,
    /// The upstream model name is empty.
    #[error("upstream_model is empty")]
    UpstreamModel,
    /// A header field that is invalid, or that the gateway sets itself.
    #[error("an extra header cannot be sent, or belongs to the connection or the body")]
    ExtraHeader,
    /// An invalid path template.
    #[error("path_template: {0}")]
    PathTemplate(InvalidTemplate),
    /// An invalid health check.
    #[error(transparent)]
    HealthCheck(#[from] InvalidHealthCheck),
    /// A concurrency limit of 0.
    #[error("max_concurrency is 0; a backend is drained otherwise")]
    Concurrency,
}

impl Backend {
    pub(crate) fn build(
        described: &Described,
        state: Arc<BackendState>,
    ) -> Result<Self, InvalidBackend> {
        match described.protocol {
            Protocol::Openai => {}
            Protocol::Anthropic | Protocol::Gemini | Protocol::Unknown => {
                return Err(InvalidBackend::Protocol);
            }
        }
        if described.upstream_model.is_empty() {
            return Err(InvalidBackend::UpstreamModel);
        }
        let location = Location::of(described)?;
        Ok(Self {
            id: described.id,
            api_base: Arc::from(described.api_base.as_str()),
            upstream_model: Arc::from(described.upstream_model.as_str()),
            auth: headers::auth(described)?,
            extra_headers: headers::extra(described)?,
            secrets: credentials::secrets(described),
            weight: described.weight,
            draining: described.draining,
            default_max_tokens: described.default_max_tokens,
            limit: ConcurrencyLimit::of(&described.concurrency)?,
            probe: Probe::of(&described.health, &location)?,
            location,
            state,
            metrics: OnceLock::new(),
        })
    }

    /// Identity across snapshots.
    pub fn id(&self) -> BackendId {
        self.id
    }

    /// The configured address, for metrics and reports; holds no credential.
    pub fn api_base(&self) -> &Arc<str> {
        &self.api_base
    }

    /// Where to connect.
    pub fn origin(&self) -> &Origin {
        &self.location.origin
    }

    /// The `host` header.
    pub fn host(&self) -> &HeaderValue {
        &self.location.host
    }

    /// The name of the model at the upstream.
    pub fn upstream_model(&self) -> &str {
        &self.upstream_model
    }

    /// The header that carries the credential, marked sensitive.
    pub fn auth(&self) -> Option<&(HeaderName, HeaderValue)> {
        self.auth.as_ref()
    }

    /// Header fields added to every request, marked sensitive. None of them
    /// carries the credential.
    pub fn extra_headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.extra_headers
    }

    /// What no response to a client may repeat, the longest first: the credential,
    /// and values of additional headers and parameters.
    pub fn secrets(&self) -> &Arc<[Secret]> {
        &self.secrets
    }

    /// The health probe; `None` if it is disabled.
    pub fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    /// Expected tokens of a response without a limit by the client.
    pub(super) fn typical_completion_tokens(&self) -> u64 {
        self.default_max_tokens
            .map_or_else(|| self.state.typical_completion_tokens(), u64::from)
    }

    /// Whether it accepts no new requests.
    pub fn draining(&self) -> bool {
        self.draining
    }

    /// Maximum number of requests in flight.
    pub fn max_concurrency(&self) -> Option<u64> {
        self.limit.map(|limit| limit.max)
    }

    pub(super) fn limit(&self) -> Option<&ConcurrencyLimit> {
        self.limit.as_ref()
    }

    /// Whether a request need not queue.
    pub(super) fn has_capacity(&self) -> bool {
        self.limit
            .is_none_or(|limit| self.state.waiting() == 0 && self.state.in_flight() < limit.max)
    }

    /// Acquires a slot, if one is free and no request is queued.
    pub(super) fn acquire(&self) -> Option<InFlight> {
        match self.limit {
            Some(limit) => self.state.try_acquire(limit.max),
            None => Some(self.state.acquire()),
        }
    }

    /// The weight among the backends of its pool.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// The load with one more request, relative to its weight; only for
    /// comparisons.
    pub(super) fn load(&self) -> u64 {
        self.load_of(self.state.in_flight().saturating_add(1))
    }

    /// The load of this number of requests in flight.
    pub(super) fn load_of(&self, requests: u64) -> u64 {
        /// Precision of the quotient for large weights.
        const SCALE: u64 = 1 << 20;
        requests.saturating_mul(SCALE) / u64::from(self.weight.max(1))
    }

    /// A 32-bit identifier within its pool.
    pub(super) fn mark(&self) -> u32 {
        let folded = self.id.0 ^ self.id.0 >> 32;
        u32::try_from(folded & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }

    /// Counters and health.
    pub fn state(&self) -> &Arc<BackendState> {
        &self.state
    }

    /// The metrics of the backend. `None` before [`Self::attach_metrics`].
    pub fn metrics(&self) -> Option<&Arc<dyn BackendMetrics>> {
        self.metrics.get()
    }

    /// Attaches metrics, unless some are attached.
    pub fn attach_metrics(&self, make: impl FnOnce() -> Arc<dyn BackendMetrics>) {
        self.metrics.get_or_init(make);
    }

    /// The request target for `sub_path` (`/chat/completions`), which must be
    /// valid in a path. Targets of common endpoints are shared.
    pub fn path(&self, sub_path: &str) -> Option<PathAndQuery> {
        self.location.target(sub_path)
    }

    /// Whether its requests have a query parameter of this name, in any case.
    pub fn has_query_parameter(&self, name: &str) -> bool {
        self.location.has_parameter(name)
    }
}

impl ConcurrencyLimit {
    fn of(described: &Concurrency) -> Result<Option<Self>, InvalidBackend> {
        let Concurrency {
            max,
            max_queue,
            queue_timeout_ms,
        } = described;
        match *max {
            None => Ok(None),
            Some(0) => Err(InvalidBackend::Concurrency),
            Some(max) => Ok(Some(Self {
                max: u64::from(max),
                max_queued: usize::try_from(*max_queue).unwrap_or(usize::MAX),
                timeout: Duration::from_millis(*queue_timeout_ms),
            })),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests;
