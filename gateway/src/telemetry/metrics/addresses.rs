use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fastllm_contract::Timestamp;
use fastllm_engine::{BackendState, EjectionReason, RoutingState};
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use prometheus::proto::MetricFamily;

use super::register::{Register, Registered};

/// The counters of backends, in the order of [`counts`].
const COUNTED: [(&str, &str); 3] = [
    ("fastllm_backend_requests_total", "Attempts by address"),
    ("fastllm_backend_errors_total", "Failed attempts by address"),
    (
        "fastllm_backend_probe_failures_total",
        "Failed health probes by address",
    ),
];

fn counts(live: &BackendState) -> [u64; 3] {
    [live.requests(), live.errors(), live.probe_failures()]
}

/// The ejections of a backend by reason.
fn ejections(live: &BackendState) -> [u64; EjectionReason::ALL.len()] {
    EjectionReason::ALL.map(|reason| live.ejections(reason))
}

/// The counters of backends, summed by address.
///
/// Backends are replaced while their address stays: the sums never decrease.
#[derive(Debug)]
pub(super) struct AddressMetrics {
    families: [IntCounterVec; COUNTED.len()],
    ejections: IntCounterVec,
    /// By the memory address of the [`BackendState`], which is kept alive.
    seen: Mutex<HashMap<usize, CountedBackend>>,
}

/// A backend whose counters are included in the sums.
#[derive(Debug)]
struct CountedBackend {
    live: Arc<BackendState>,
    api_base: Arc<str>,
    counts: [u64; 3],
    ejections: [u64; EjectionReason::ALL.len()],
}

impl AddressMetrics {
    pub(super) fn new(register: &Register) -> Registered<Self> {
        let counter = |(name, help)| register.counters(name, help, &["api_base"]);
        let [requests, errors, probe_failures] = COUNTED.map(counter);
        Ok(Self {
            families: [requests?, errors?, probe_failures?],
            ejections: register.counters(
                "fastllm_backend_ejections_total",
                "Ejections of an address",
                &["api_base", "reason"],
            )?,
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
                CountedBackend {
                    live: Arc::clone(live),
                    api_base,
                    counts: [0; 3],
                    ejections: [0; EjectionReason::ALL.len()],
                }
            });
        }
        for seen in seen.values_mut() {
            self.add(seen);
        }
    }

    /// Adds the increments of a backend. This also creates the series of its
    /// address, starting at zero.
    fn add(&self, seen: &mut CountedBackend) {
        let api_base = &*seen.api_base;
        let now = counts(&seen.live);
        for ((family, now), before) in self.families.iter().zip(now).zip(seen.counts) {
            family
                .with_label_values(&[api_base])
                .inc_by(now.saturating_sub(before));
        }
        seen.counts = now;
        let now = ejections(&seen.live);
        for ((reason, now), before) in EjectionReason::ALL.iter().zip(now).zip(seen.ejections) {
            self.ejections
                .with_label_values(&[api_base, reason.as_str()])
                .inc_by(now.saturating_sub(before));
        }
        seen.ejections = now;
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

    /// The attempts by address: there is one for every address.
    pub(super) fn requests(&self) -> &IntCounterVec {
        let [requests, _, _] = &self.families;
        requests
    }

    /// Removes the series of an address.
    pub(super) fn remove(&self, address: &str) {
        // A label that does not exist requires no removal.
        for family in &self.families {
            let _gone = family.remove_label_values(&[address]);
        }
        for reason in EjectionReason::ALL {
            let _gone = self
                .ejections
                .remove_label_values(&[address, reason.as_str()]);
        }
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
        &["api_base", "reason"],
    )?;
    for (model, backend) in tables.backends() {
        let (live, api_base) = (backend.state(), &**backend.api_base());
        let labels = [api_base, model.as_str()];
        let load = i64::try_from(live.in_flight()).unwrap_or(i64::MAX);
        under_way.with_label_values(&labels).add(load);
        let queue = i64::try_from(live.waiting()).unwrap_or(i64::MAX);
        waiting.with_label_values(&labels).add(queue);
        healthy.with_label_values(&[api_base]).set(1);
        for reason in EjectionReason::ALL {
            let ejected = ejected.with_label_values(&[api_base, reason.as_str()]);
            let is_ejected = i64::from(live.is_ejected(reason, at));
            ejected.set(ejected.get().max(is_ejected));
        }
    }
    // If any backend of an address is unhealthy, the address is.
    for (_, backend) in tables.backends() {
        if !backend.state().healthy() {
            healthy.with_label_values(&[&**backend.api_base()]).set(0);
        }
    }
    Ok(register.into_registry().gather())
}
