//! Active health: asks every backend for its models now and then.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::ModelName;
use fastllm_engine::{Backend, Live, Tables};
use http::header::{HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::snapshot::Current;

/// Probes under way at one time.
const AT_ONCE: usize = 64;

/// The most that is read of an answer, in bytes: its status decides.
const BODY_LIMIT: usize = 1 << 20;

/// Probes all backends every interval.
#[derive(Debug)]
pub(crate) struct Prober {
    pub(crate) client: reqwest::Client,
    pub(crate) current: Arc<Current>,
    pub(crate) every: Duration,
    pub(crate) timeout: Duration,
}

/// One request of a sweep.
struct Probe {
    url: String,
    auth: Option<(HeaderName, HeaderValue)>,
    model: ModelName,
    backend: u64,
    live: Arc<Live>,
}

impl Prober {
    /// A client for probes.
    pub(crate) fn client(tls: rustls::ClientConfig) -> Result<reqwest::Client, reqwest::Error> {
        reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("fastllm-gateway/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .build()
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut changes = self.current.changes();
        tokio::select! {
            _ = changes.wait_for(|count| *count > 0) => {}
            () = stop.cancelled() => return,
        }
        let mut tick = interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = self.sweep() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn sweep(&self) {
        let Some(tables) = self.current.tables() else {
            return;
        };
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut probes = JoinSet::new();
        for probe in probes_of(&tables) {
            let (room, client, limit) = (Arc::clone(&room), self.client.clone(), self.timeout);
            probes.spawn(async move {
                let _place = room.acquire().await;
                let outcome = timeout(limit, ask(&client, &probe)).await;
                let outcome = outcome.unwrap_or(Err("no answer in time".to_owned()));
                note(&probe, &outcome);
            });
        }
        while probes.join_next().await.is_some() {}
    }
}

fn probes_of(tables: &Tables) -> Vec<Probe> {
    let mut seen = HashSet::new();
    tables
        .backends()
        .filter(|(_, backend)| seen.insert(Arc::as_ptr(backend.live())))
        .map(|(model, backend)| probe_of(model, backend))
        .collect()
}

fn probe_of(model: &ModelName, backend: &Backend) -> Probe {
    Probe {
        url: format!("{}/models", backend.api_base().trim_end_matches('/')),
        auth: backend.auth().cloned(),
        model: model.clone(),
        backend: backend.id().0,
        live: Arc::clone(backend.live()),
    }
}

/// Healthy is a 2xx whose body arrives. The reason holds no address.
async fn ask(client: &reqwest::Client, probe: &Probe) -> Result<(), String> {
    let mut request = client.get(&probe.url);
    if let Some((name, value)) = &probe.auth {
        request = request.header(name, value.clone());
    }
    let reason = |error: reqwest::Error| error.without_url().to_string();
    let mut answer = request.send().await.map_err(reason)?;
    if !answer.status().is_success() {
        return Err(format!("status {}", answer.status().as_u16()));
    }
    let mut read = 0;
    while let Some(chunk) = answer.chunk().await.map_err(reason)? {
        read += chunk.len();
        if read > BODY_LIMIT {
            break;
        }
    }
    Ok(())
}

fn note(probe: &Probe, outcome: &Result<(), String>) {
    let model = probe.model.as_str();
    let backend = probe.backend;
    match (probe.live.probed(outcome.is_ok()), outcome) {
        (Some(true), _) => tracing::info!(model, backend, "a backend is healthy again"),
        (Some(false), Err(reason)) => {
            tracing::warn!(model, backend, reason, "a backend is unhealthy");
        }
        _ => {}
    }
}
