use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fastllm_engine::{BackendMetrics, RoutingState};
use prometheus::core::Collector;
use prometheus::proto::{LabelPair, Metric, MetricFamily};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use super::addresses::AddressMetrics;
use super::register::{Register, Registered};

/// Metrics by model and by address. Label values come from the snapshot.
#[derive(Debug)]
pub(super) struct LabelledMetrics {
    requests: IntCounterVec,
    tokens: IntCounterVec,
    duration: HistogramVec,
    first_token: HistogramVec,
    backend_duration: HistogramVec,
}

/// The metrics of one backend's model and address.
#[derive(Debug)]
struct LabelledBackendMetrics {
    requests: IntCounter,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    duration: Histogram,
    first_token: Histogram,
    backend_duration: Histogram,
}

/// The kinds of tokens.
const KINDS: [&str; 2] = ["prompt", "completion"];

impl BackendMetrics for LabelledBackendMetrics {
    fn record_response(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.requests.inc();
        self.duration.observe(seconds);
        self.backend_duration.observe(seconds);
    }

    fn record_first_event(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    fn record_tokens(&self, prompt: u64, completion: u64) {
        self.prompt_tokens.inc_by(prompt);
        self.completion_tokens.inc_by(completion);
    }
}

impl LabelledMetrics {
    pub(super) fn new(register: &Register) -> Registered<Self> {
        let model = ["model"];
        Ok(Self {
            requests: register.counters(
                "fastllm_model_requests_total",
                "Requests by serving model",
                &model,
            )?,
            tokens: register.counters(
                "fastllm_model_tokens_total",
                "Reported tokens by serving model",
                &["model", "kind"],
            )?,
            duration: register.histograms(
                "fastllm_model_duration_seconds",
                "From arrival to the end of the response, by model",
                &model,
            )?,
            first_token: register.histograms(
                "fastllm_model_time_to_first_token_seconds",
                "Time from arrival to the first event of a stream, by model",
                &model,
            )?,
            backend_duration: register.histograms(
                "fastllm_backend_duration_seconds",
                "From arrival to the end of the response, by address",
                &["api_base"],
            )?,
        })
    }

    /// Attaches metrics to every backend.
    pub(super) fn attach(&self, tables: &RoutingState) {
        for (model, backend) in tables.backends() {
            let model = &[model.as_str()];
            let [prompt, completion] = KINDS.map(|kind| [model[0], kind]);
            let address: &[&str] = &[backend.api_base()];
            backend.attach_metrics(|| {
                Arc::new(LabelledBackendMetrics {
                    requests: self.requests.with_label_values(model),
                    prompt_tokens: self.tokens.with_label_values(&prompt),
                    completion_tokens: self.tokens.with_label_values(&completion),
                    duration: self.duration.with_label_values(model),
                    first_token: self.first_token.with_label_values(model),
                    backend_duration: self.backend_duration.with_label_values(address),
                })
            });
        }
    }

    /// Removes the labels of models and addresses that `tables` lack, including
    /// those of `by_address`.
    pub(super) fn prune(&self, tables: &RoutingState, by_address: &AddressMetrics) {
        let models: HashSet<&str> = tables.pools().map(|pool| pool.model().as_str()).collect();
        let addresses: HashSet<&str> = tables
            .backends()
            .map(|(_, backend)| &**backend.api_base())
            .collect();
        // A label that does not exist requires no removal.
        for model in strangers(&self.requests, &models) {
            let _gone = self.requests.remove_label_values(&[&model]);
        }
        for model in strangers(&self.tokens, &models) {
            for kind in KINDS {
                let _gone = self.tokens.remove_label_values(&[&model, kind]);
            }
        }
        for family in [&self.duration, &self.first_token] {
            for model in strangers(family, &models) {
                let _gone = family.remove_label_values(&[&model]);
            }
        }
        for address in strangers(&self.backend_duration, &addresses) {
            let _gone = self.backend_duration.remove_label_values(&[&address]);
        }
        for address in strangers(by_address.requests(), &addresses) {
            by_address.remove(&address);
        }
    }
}

/// The models or addresses of a family that are not in `known`.
fn strangers(family: &impl Collector, known: &HashSet<&str>) -> Vec<String> {
    let families = family.collect();
    let labels = families
        .iter()
        .flat_map(MetricFamily::get_metric)
        .flat_map(Metric::get_label);
    labels
        .filter(|label| matches!(label.name(), "model" | "api_base"))
        .map(LabelPair::value)
        .filter(|value| !known.contains(value))
        .map(str::to_owned)
        .collect()
}
