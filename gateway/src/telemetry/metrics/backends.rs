use std::collections::HashSet;
use std::sync::Arc;

use fastllm_engine::Tables;
use prometheus::proto::MetricFamily;

use super::register::{Register, Registered};

/// The counters that live with the backends, summed by address.
pub(super) fn backend_families(tables: &Tables) -> Registered<Vec<MetricFamily>> {
    let register = Register::default();
    let address = ["api_base"];
    let requests = register.counters(
        "fastllm_backend_requests_total",
        "Attempts by address",
        &address,
    )?;
    let errors = register.counters(
        "fastllm_backend_errors_total",
        "Failed attempts by address",
        &address,
    )?;
    let under_way = register.gauges(
        "fastllm_backend_inflight",
        "Requests under way",
        &["api_base", "model"],
    )?;
    let healthy = register.gauges(
        "fastllm_backend_healthy",
        "Whether its probes succeed",
        &address,
    )?;
    let mut seen = HashSet::new();
    let mut sick = HashSet::new();
    for (model, backend) in tables.backends() {
        let (live, api_base) = (backend.live(), &**backend.api_base());
        let load = i64::try_from(live.in_flight()).unwrap_or(i64::MAX);
        under_way
            .with_label_values(&[api_base, model.as_str()])
            .add(load);
        if !live.healthy() {
            sick.insert(api_base);
        }
        healthy
            .with_label_values(&[api_base])
            .set(i64::from(!sick.contains(api_base)));
        if seen.insert(Arc::as_ptr(live)) {
            requests
                .with_label_values(&[api_base])
                .inc_by(live.requests());
            errors.with_label_values(&[api_base]).inc_by(live.errors());
        }
    }
    Ok(register.into_registry().gather())
}
