use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fastllm_contract::Timestamp;
use fastllm_engine::{BackendState, RoutingState};
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use prometheus::proto::MetricFamily;

use super::register::{Register, Registered};

/// The counters of backends, in the order of [`counts`].
const COUNTED: [(&str, &str); 4] = [
    ("fastllm_backend_requests_total", "Attempts by address"),
    ("fastllm_backend_errors_total", "Failed attempts by address"),
    (
        "fastllm_backend_ejections_total",
        "Ejections of an address after consecutive failures",
    ),
    (
        "fastllm_backend_probe_failures_total",
        "Failed health probes by address",
    ),
];

fn counts(live: &BackendState) -> [u64; 4] {
    [
        live.requests(),
        live.errors(),
        live.ejections(),
        live.probe_failures(),
    ]
}

/// The counters of backends, summed by address.
///
/// Backends are replaced while their address stays: the sums never decrease.
#[derive(Debug)]
pub(super) struct AddressMetrics {
    families: Vec<IntCounterVec>,
    /// By the memory address of the [`BackendState`], which is kept alive.
    seen: Mutex<HashMap<usize, CountedBackend>>,
}

/// A backend whose counters are included in the sums.
#[derive(Debug)]
struct CountedBackend {
    live: Arc<BackendState>,
    api_base: Arc<str>,
    counts: [u64; 4],
}

impl AddressMetrics {
    pub(super) fn new(register: &Register) -> Registered<Self> {
        let families = COUNTED
            .iter()
            .map(|(name, help)| register.counters(name, help, &["api_base"]));
        Ok(Self {
            families: families.collect::<Registered<_>>()?,
            seen: Mutex::default(),
        })
    }

    /// Adds the increments since the last call.
    pub(super) fn update(&self, tables: &RoutingState) {
        let mut seen = self.seen.lock();
        for (_, backend) in tables.backends() {
            let live = backend.state();
            seen.entry(Arc::as_ptr(live).addr()).or_insert_with(|| {
                let api_base = Arc::clone(backend.api_base());
                // Creates the series of the address, starting at zero.
                for family in &self.families {
                    family.with_label_values(&[&*api_base]);
                }
                CountedBackend {
                    live: Arc::clone(live),
                    api_base,
                    counts: [0; 4],
                }
            });
        }
        for seen in seen.values_mut() {
            let now = counts(&seen.live);
            for ((family, now), before) in self.families.iter().zip(now).zip(seen.counts) {
                family
                    .with_label_values(&[&*seen.api_base])
                    .inc_by(now.saturating_sub(before));
            }
            seen.counts = now;
        }
    }

    /// Adds the last counts of backends that `tables` lack, and removes them.
    pub(super) fn published(&self, tables: &RoutingState) {
        self.update(tables);
        let named: HashSet<usize> = tables
            .backends()
            .map(|(_, backend)| Arc::as_ptr(backend.state()).addr())
            .collect();
        self.seen.lock().retain(|live, _| named.contains(live));
    }

    pub(super) fn families(&self) -> &[IntCounterVec] {
        &self.families
    }
}

/// Sets the gauges of the current backends.
pub(super) fn gauges(tables: &RoutingState, at: Timestamp) -> Registered<Vec<MetricFamily>> {
    let register = Register::default();
    let address = ["api_base"];
    let under_way = register.gauges(
        "fastllm_backend_inflight",
        "Requests in flight",
        &["api_base", "model"],
    )?;
    let waiting = register.gauges(
        "fastllm_backend_waiting",
        "Requests that queue for a slot",
        &["api_base", "model"],
    )?;
    let healthy = register.gauges(
        "fastllm_backend_healthy",
        "Whether the probes of the backend succeed",
        &address,
    )?;
    let ejected = register.gauges(
        "fastllm_backend_ejected",
        "Whether an address is ejected",
        &address,
    )?;
    for (model, backend) in tables.backends() {
        let (live, api_base) = (backend.state(), &**backend.api_base());
        let labels = [api_base, model.as_str()];
        let load = i64::try_from(live.in_flight()).unwrap_or(i64::MAX);
        under_way.with_label_values(&labels).add(load);
        let queue = i64::try_from(live.waiting()).unwrap_or(i64::MAX);
        waiting.with_label_values(&labels).add(queue);
        healthy.with_label_values(&[api_base]).set(1);
        let ejected = ejected.with_label_values(&[api_base]);
        ejected.set(ejected.get().max(i64::from(live.is_ejected(at))));
    }
    // If any backend of an address is unhealthy, the address is.
    for (_, backend) in tables.backends() {
        if !backend.state().healthy() {
            healthy.with_label_values(&[&**backend.api_base()]).set(0);
        }
    }
    Ok(register.into_registry().gather())
}
