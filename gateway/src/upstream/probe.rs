//! Active health checks: probes every backend periodically.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::ModelName;
use fastllm_engine::{Backend, BackendState, Probe, RoutingState};
use fastllm_process::upstream_addresses::UpstreamAddresses;
use http::Method;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use reqwest::RequestBuilder;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use url::{Host, Url};

use super::permitted::{NotPermitted, PermittedResolver, check};
use crate::snapshot::CurrentSnapshot;

/// The maximum number of concurrent probes.
const MAX_CONCURRENT_PROBES: usize = 64;

/// The maximum number of response bytes that are read: the status decides.
const BODY_LIMIT: usize = 1 << 20;

/// A sweep starts at a random time within this part of its interval, so that
/// gateways do not probe in step.
const SPREAD: f64 = 0.1;

/// How backends are probed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeConfig {
    pub(crate) interval: Duration,
    /// Time limit of a probe, including the response body.
    pub(crate) timeout: Duration,
}

impl ProbeConfig {
    /// Creates a prober of the backends of the current snapshot.
    pub(crate) fn build(
        self,
        tls: rustls::ClientConfig,
        addresses: Arc<UpstreamAddresses>,
        current: Arc<CurrentSnapshot>,
    ) -> Result<Prober, reqwest::Error> {
        Ok(Prober {
            client: ProbeClient::new(tls, addresses)?,
            current,
            every: self.interval,
            timeout: self.timeout,
        })
    }
}

/// Probes all backends every interval.
#[derive(Debug)]
pub(crate) struct Prober {
    client: ProbeClient,
    current: Arc<CurrentSnapshot>,
    every: Duration,
    timeout: Duration,
}

/// A single probe request.
struct ProbeRequest {
    probe: Probe,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    model: ModelName,
    backend: u64,
    live: Arc<BackendState>,
}

/// The running probes, at most one per backend: a slow probe delays no other,
/// and is not repeated before it has finished or timed out.
struct RunningProbes {
    room: Arc<Semaphore>,
    tasks: JoinSet<()>,
    by_backend: HashMap<usize, AbortHandle>,
}

/// The HTTP client of probes. Connects only to permitted addresses.
#[derive(Debug, Clone)]
struct ProbeClient {
    http: reqwest::Client,
    addresses: Arc<UpstreamAddresses>,
}

impl ProbeClient {
    fn new(
        tls: rustls::ClientConfig,
        addresses: Arc<UpstreamAddresses>,
    ) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("fastllm-gateway/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .dns_resolver(PermittedResolver(Arc::clone(&addresses)))
            .build()?;
        Ok(Self { http, addresses })
    }

    /// A literal address is not resolved, and is checked here.
    fn request(&self, method: Method, url: &str) -> Result<RequestBuilder, NotPermitted> {
        let parsed = Url::parse(url).ok();
        let address = match parsed.as_ref().and_then(Url::host) {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(_)) | None => None,
        };
        if let Some(address) = address {
            check(&self.addresses, address)?;
        }
        Ok(self.http.request(method, url))
    }
}

impl Prober {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut changes = self.current.changes();
        tokio::select! {
            _ = changes.wait_for(|count| *count > 0) => {}
            () = stop.cancelled() => return,
        }
        let mut tick = interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut running = RunningProbes::default();
        loop {
            let jitter = self.every.mul_f64(SPREAD * fastrand::f64());
            let next = async {
                tick.tick().await;
                sleep(jitter).await;
            };
            tokio::select! {
                () = next => {}
                () = stop.cancelled() => return,
            }
            if let Some(tables) = self.current.tables() {
                self.sweep(&tables, &mut running);
            }
        }
    }

    /// Starts a probe of every backend that is not being probed already.
    fn sweep(&self, tables: &RoutingState, running: &mut RunningProbes) {
        running.forget_finished();
        for probe_request in probe_requests(tables) {
            running.begin(probe_request, self.client.clone(), self.timeout);
        }
    }
}

impl Default for RunningProbes {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(MAX_CONCURRENT_PROBES)),
            tasks: JoinSet::new(),
            by_backend: HashMap::new(),
        }
    }
}

impl RunningProbes {
    fn forget_finished(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.by_backend.retain(|_, task| !task.is_finished());
    }

    fn begin(&mut self, probe_request: ProbeRequest, client: ProbeClient, limit: Duration) {
        let Entry::Vacant(entry) = self.by_backend.entry(key(&probe_request.live)) else {
            return;
        };
        let room = Arc::clone(&self.room);
        let task = self.tasks.spawn(async move {
            let _place = room.acquire().await;
            let outcome = timeout(limit, send_probe(&client, &probe_request)).await;
            let outcome = outcome.unwrap_or(Err("the probe timed out".to_owned()));
            record_outcome(&probe_request, &outcome);
        });
        entry.insert(task);
    }
}

/// The identity of the backend across snapshots.
fn key(live: &Arc<BackendState>) -> usize {
    Arc::as_ptr(live).addr()
}

/// What is probed now. Backends that are not probed are healthy.
fn probe_requests(tables: &RoutingState) -> Vec<ProbeRequest> {
    let mut requested = HashSet::new();
    let probe_requests: Vec<_> = tables
        .backends()
        .filter_map(|(model, backend)| probe_request(model, backend))
        .filter(|probe_request| requested.insert(key(&probe_request.live)))
        .collect();
    for (_, backend) in tables.backends() {
        if !requested.contains(&key(backend.state())) {
            backend.state().record_probe(true);
        }
    }
    probe_requests
}

fn probe_request(model: &ModelName, backend: &Backend) -> Option<ProbeRequest> {
    let probe = backend.probe()?.clone();
    Some(ProbeRequest {
        url: format!("{}{}", backend.origin(), probe.target()),
        probe,
        headers: backend
            .extra_headers()
            .iter()
            .chain(backend.auth())
            .cloned()
            .collect(),
        model: model.clone(),
        backend: backend.id().0,
        live: Arc::clone(backend.state()),
    })
}

/// A backend is healthy if its response has an expected status and a complete
/// body. Errors contain no address.
async fn send_probe(client: &ProbeClient, probe_request: &ProbeRequest) -> Result<(), String> {
    let method = probe_request.probe.method();
    let mut request = client
        .request(method.clone(), &probe_request.url)
        .map_err(|error| error.to_string())?;
    if *method == Method::POST {
        // Some servers respond 411 without this field.
        request = request.header(CONTENT_LENGTH, "0");
    }
    for (name, value) in &probe_request.headers {
        request = request.header(name, value.clone());
    }
    let reason = |error: reqwest::Error| error.without_url().to_string();
    let mut response = request.send().await.map_err(reason)?;
    let status = response.status().as_u16();
    if !probe_request.probe.expects(status) {
        return Err(format!("status {status}"));
    }
    let mut read = 0;
    while let Some(chunk) = response.chunk().await.map_err(reason)? {
        read += chunk.len();
        if read > BODY_LIMIT {
            break;
        }
    }
    Ok(())
}

fn record_outcome(probe_request: &ProbeRequest, outcome: &Result<(), String>) {
    let model = probe_request.model.as_str();
    let backend = probe_request.backend;
    match (probe_request.live.record_probe(outcome.is_ok()), outcome) {
        (Some(true), _) => tracing::info!(model, backend, "the backend is healthy again"),
        (Some(false), Err(reason)) => {
            tracing::warn!(model, backend, reason, "the backend is unhealthy");
        }
        _ => {}
    }
}
