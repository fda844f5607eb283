use std::collections::HashSet;
use std::time::Duration;

use fastllm_contract::ModelName;
use fastllm_engine::Tables;
use prometheus::core::Collector;
use prometheus::proto::{LabelPair, Metric, MetricFamily};
use prometheus::{HistogramVec, IntCounterVec};

use super::register::{Register, Registered};

/// Metrics by model and by address. Labels are those of the snapshot.
#[derive(Debug)]
pub(super) struct Labelled {
    requests: IntCounterVec,
    tokens: IntCounterVec,
    duration: HistogramVec,
    first_token: HistogramVec,
    backend_duration: HistogramVec,
}

/// The kinds of tokens that are counted.
const KINDS: [&str; 2] = ["prompt", "completion"];

impl Labelled {
    pub(super) fn new(register: &Register) -> Registered<Self> {
        let model = ["model"];
        Ok(Self {
            requests: register.counters(
                "fastllm_model_requests_total",
                "Requests by answering model",
                &model,
            )?,
            tokens: register.counters(
                "fastllm_model_tokens_total",
                "Reported tokens by answering model",
                &["model", "kind"],
            )?,
            duration: register.histograms(
                "fastllm_model_duration_seconds",
                "From arrival to the end of the answer, by model",
                &model,
            )?,
            first_token: register.histograms(
                "fastllm_model_time_to_first_token_seconds",
                "From arrival to the first event of a stream, by model",
                &model,
            )?,
            backend_duration: register.histograms(
                "fastllm_backend_duration_seconds",
                "From arrival to the end of the answer, by address",
                &["api_base"],
            )?,
        })
    }

    pub(super) fn answered(&self, model: &ModelName, api_base: &str, took: Duration) {
        let seconds = took.as_secs_f64();
        let model = &[model.as_str()];
        self.requests.with_label_values(model).inc();
        self.duration.with_label_values(model).observe(seconds);
        self.backend_duration
            .with_label_values(&[api_base])
            .observe(seconds);
    }

    pub(super) fn first_event(&self, model: &ModelName, after: Duration) {
        self.first_token
            .with_label_values(&[model.as_str()])
            .observe(after.as_secs_f64());
    }

    pub(super) fn tokens(&self, model: &ModelName, counts: [u64; 2]) {
        for (kind, count) in KINDS.into_iter().zip(counts) {
            self.tokens
                .with_label_values(&[model.as_str(), kind])
                .inc_by(count);
        }
    }

    /// Drops the labels of models and addresses that `tables` lack.
    pub(super) fn prune(&self, tables: &Tables) {
        let models: HashSet<&str> = tables.pools().map(|pool| pool.model().as_str()).collect();
        let addresses: HashSet<&str> = tables
            .backends()
            .map(|(_, backend)| &**backend.api_base())
            .collect();
        // A label that is gone already needs no removing.
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
    }
}

/// The models or addresses of a family that are not among `known`.
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
