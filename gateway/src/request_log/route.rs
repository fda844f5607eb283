use std::sync::Arc;

use fastllm_contract::{BackendId, ModelName};
use fastllm_engine::{Backend, BackendMetrics};
use fastllm_wire::Measure;

use crate::http::ProxiedEndpoint;
use crate::telemetry::CacheUse;

/// Where a request went.
#[derive(Debug, Default)]
pub(crate) struct Route {
    endpoint: Option<ProxiedEndpoint>,
    /// The name that the client requested.
    requested: Option<ModelName>,
    /// The concrete model.
    model: Option<ModelName>,
    stream: bool,
    /// The backend that was attempted last, or that responds.
    backend: Option<AttemptedBackend>,
    /// Backends that were attempted before it.
    earlier_backends: Vec<AttemptedBackend>,
    attempts: u32,
    /// The outcome of the cache lookup, where there was one.
    cache: Option<CacheUse>,
}

/// A backend that a request was sent to.
#[derive(Debug)]
pub(super) struct AttemptedBackend {
    pub(super) id: BackendId,
    pub(super) api_base: Arc<str>,
    metrics: Option<Arc<dyn BackendMetrics>>,
}

impl Route {
    /// The request is for this endpoint.
    pub(crate) fn set_endpoint(&mut self, endpoint: ProxiedEndpoint) {
        self.endpoint = Some(endpoint);
    }

    pub(super) fn set_model(&mut self, requested: &ModelName, model: &ModelName, stream: bool) {
        self.requested = Some(requested.clone());
        self.model = Some(model.clone());
        self.stream = stream;
    }

    pub(super) fn set_cache_lookup(&mut self, model: &ModelName, cache: CacheUse) {
        self.model = Some(model.clone());
        self.cache = Some(cache);
    }

    /// The request is sent to a backend of a concrete model.
    pub(crate) fn record_attempt(&mut self, model: &ModelName, backend: &Backend) {
        self.model = Some(model.clone());
        let attempted = AttemptedBackend {
            id: backend.id(),
            api_base: Arc::clone(backend.api_base()),
            metrics: backend.metrics().cloned(),
        };
        self.earlier_backends
            .extend(self.backend.replace(attempted));
        self.attempts += 1;
    }

    /// The response comes from a backend that was attempted before the last one.
    pub(crate) fn set_responding_backend(
        &mut self,
        model: &ModelName,
        id: BackendId,
        api_base: &Arc<str>,
    ) {
        self.model = Some(model.clone());
        let metrics = self
            .earlier_backends
            .iter()
            .chain(&self.backend)
            .find(|attempted| attempted.id == id)
            .and_then(|attempted| attempted.metrics.clone());
        self.backend = Some(AttemptedBackend {
            id,
            api_base: Arc::clone(api_base),
            metrics,
        });
    }

    pub(super) fn endpoint(&self) -> Option<ProxiedEndpoint> {
        self.endpoint
    }

    /// What the usage of the endpoint is measured in, besides tokens.
    pub(crate) fn measure(&self) -> Measure {
        self.endpoint
            .map(ProxiedEndpoint::measure)
            .unwrap_or_default()
    }

    /// The outcome of the cache lookup, where there was one.
    pub(crate) fn cache(&self) -> Option<CacheUse> {
        self.cache
    }

    pub(super) fn is_cache_hit(&self) -> bool {
        self.cache == Some(CacheUse::Hit)
    }

    pub(super) fn model(&self) -> Option<&ModelName> {
        self.model.as_ref()
    }

    pub(super) fn requested(&self) -> Option<&ModelName> {
        self.requested.as_ref()
    }

    /// The requested name, where it is not that of the model.
    pub(super) fn alias(&self) -> Option<&ModelName> {
        self.requested
            .as_ref()
            .filter(|requested| Some(*requested) != self.model.as_ref())
    }

    pub(super) fn backend(&self) -> Option<&AttemptedBackend> {
        self.backend.as_ref()
    }

    /// The metrics of the backend.
    pub(super) fn backend_metrics(&self) -> Option<&dyn BackendMetrics> {
        self.backend.as_ref()?.metrics.as_deref()
    }

    pub(super) fn is_stream(&self) -> bool {
        self.stream
    }

    /// Whether the request was sent to more than one backend, or more than once.
    pub(crate) fn was_retried(&self) -> bool {
        self.attempts > 1
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }
}
