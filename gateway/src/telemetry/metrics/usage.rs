//! Usage by client-chosen members of `metadata`, as configured by the operator.

use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use fastllm_contract::{Metadata, MetadataValue};
use fastllm_wire::Usage;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec};

use super::register::{Register, Registered};
use crate::runtime::buffers;

/// The maximum number of distinct label sets: clients choose the values, and
/// each set is a time series.
const SETS: usize = 100;

/// The value of all labels beyond that maximum.
const OTHER: &str = "other";

/// A byte that occurs in no text.
const END_OF_VALUE: u8 = 0xFF;

/// The maximum number of labels.
const MAX_LABELS: usize = 8;

/// The kinds of tokens, as label values.
const KINDS: [&str; 5] = ["prompt", "completion", "cached", "cache_write", "reasoning"];

/// Names of labels that already exist here, or that Prometheus adds.
const TAKEN: [&str; 7] = [
    "kind", "model", "api_base", "le", "quantile", "job", "instance",
];

/// The members of `metadata` that label the usage metrics, and their label
/// names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetadataLabels(Vec<MetadataLabel>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct MetadataLabel {
    member: String,
    label: String,
}

/// Why members cannot be used as labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The name is not valid for a member.
    #[error(
        "a member name must have 1 to {} characters, without control characters",
        Metadata::MAX_NAME_CHARS
    )]
    Name,
    /// The number of labels exceeds the maximum.
    #[error("at most {MAX_LABELS} members can be labels")]
    TooMany,
    /// Prometheus does not accept the name.
    #[error("the label of {member} would be {label}: {why}")]
    Label {
        /// The member.
        member: String,
        /// Its name, with characters other than letters, digits and `_`
        /// replaced.
        label: String,
        /// The reason.
        why: &'static str,
    },
}

impl fmt::Display for MetadataLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, label) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}", label.member)?;
        }
        Ok(())
    }
}

impl FromStr for MetadataLabels {
    type Err = LabelError;

    /// The names of members, separated by commas.
    fn from_str(text: &str) -> Result<Self, LabelError> {
        let mut labels: Vec<MetadataLabel> = Vec::new();
        if text.trim().is_empty() {
            return Ok(Self(labels));
        }
        for member in text.split(',').map(str::trim) {
            let label = MetadataLabel::new(member)?;
            if labels.iter().any(|other| other.label == label.label) {
                return Err(label.wrong("another member has the same label"));
            }
            labels.push(label);
        }
        if labels.len() > MAX_LABELS {
            return Err(LabelError::TooMany);
        }
        Ok(Self(labels))
    }
}

impl MetadataLabel {
    fn new(member: &str) -> Result<Self, LabelError> {
        if !Metadata::is_name(member) {
            return Err(LabelError::Name);
        }
        let plain = |letter: char| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '_'
            }
        };
        let label = Self {
            member: member.to_owned(),
            label: member.chars().map(plain).collect(),
        };
        if TAKEN.contains(&label.label.as_str()) {
            return Err(label.wrong("that label name is already in use"));
        }
        if label.label.starts_with("__") {
            return Err(
                label.wrong("Prometheus reserves label names that begin with two underscores")
            );
        }
        if label
            .label
            .starts_with(|first: char| first.is_ascii_digit())
        {
            return Err(label.wrong("a label name must not begin with a digit"));
        }
        Ok(label)
    }

    fn wrong(self, why: &'static str) -> LabelError {
        LabelError::Label {
            member: self.member,
            label: self.label,
            why,
        }
    }
}

/// Counters by the values of those labels. Existing label sets are looked up
/// without a lock.
#[derive(Debug)]
pub(super) struct ByMetadata {
    labels: MetadataLabels,
    requests: IntCounterVec,
    tokens: IntCounterVec,
    /// By the values, each followed by [`END_OF_VALUE`].
    known: ArcSwap<HashMap<Box<[u8]>, Arc<UsageCounters>>>,
    other: UsageCounters,
    /// Held while a label set is added.
    adding: Mutex<()>,
}

/// The counters of one label set.
#[derive(Debug)]
struct UsageCounters {
    requests: IntCounter,
    tokens: [IntCounter; KINDS.len()],
}

impl ByMetadata {
    /// Nothing if there are no labels: then no metric is registered.
    pub(super) fn new(register: &Register, labels: &MetadataLabels) -> Registered<Option<Self>> {
        if labels.0.is_empty() {
            return Ok(None);
        }
        let names: Vec<&str> = labels.0.iter().map(|label| label.label.as_str()).collect();
        let requests = register.counters(
            "fastllm_usage_requests_total",
            "Requests that a backend served, by metadata",
            &names,
        )?;
        let with_kind: Vec<&str> = names.iter().copied().chain(["kind"]).collect();
        let tokens = register.counters(
            "fastllm_usage_tokens_total",
            "Reported tokens, by metadata",
            &with_kind,
        )?;
        let other = UsageCounters::new(&requests, &tokens, &vec![OTHER.to_owned(); names.len()]);
        Ok(Some(Self {
            labels: labels.clone(),
            requests,
            tokens,
            known: ArcSwap::default(),
            other,
            adding: Mutex::new(()),
        }))
    }

    /// Counts the usage of a request.
    pub(super) fn count(&self, metadata: Option<&Metadata>, usage: Option<&Usage>) {
        let mut set = buffers::take();
        for value in self.values(metadata) {
            write(value, &mut set);
            set.push(END_OF_VALUE);
        }
        if let Some(counters) = self.known.load().get(&*set) {
            counters.count(usage);
        } else {
            self.add(&set, metadata)
                .as_deref()
                .unwrap_or(&self.other)
                .count(usage);
        }
        buffers::recycle(set);
    }

    fn values<'a>(
        &self,
        metadata: Option<&'a Metadata>,
    ) -> impl Iterator<Item = Option<MetadataValue<'a>>> {
        let labels = self.labels.0.iter();
        labels.map(move |label| metadata.and_then(|metadata| metadata.get(&label.member)))
    }

    /// Adds a label set if there is room.
    fn add(&self, set: &[u8], metadata: Option<&Metadata>) -> Option<Arc<UsageCounters>> {
        if self.known.load().len() >= SETS {
            return None;
        }
        let _adding = self.adding.lock();
        let mut known = HashMap::clone(&self.known.load());
        if let Some(counters) = known.get(set) {
            return Some(Arc::clone(counters));
        }
        if known.len() >= SETS {
            return None;
        }
        let values = self.values(metadata).map(|value| {
            let mut written = Vec::new();
            write(value, &mut written);
            String::from_utf8_lossy(&written).into_owned()
        });
        let values: Vec<String> = values.collect();
        let counters = Arc::new(UsageCounters::new(&self.requests, &self.tokens, &values));
        known.insert(set.into(), Arc::clone(&counters));
        self.known.store(Arc::new(known));
        Some(counters)
    }
}

/// Writes a label value; nothing for an absent one, and commas between the texts
/// of a list.
fn write(value: Option<MetadataValue<'_>>, into: &mut Vec<u8>) {
    let _infallible = match value {
        None => Ok(()),
        Some(MetadataValue::Flag(flag)) => write!(into, "{flag}"),
        Some(MetadataValue::Integer(number)) => write!(into, "{number}"),
        Some(MetadataValue::Float(number)) => write!(into, "{number}"),
        Some(MetadataValue::Text(text)) => into.write_all(text.as_bytes()),
        Some(MetadataValue::List(list)) => {
            for (at, text) in list.iter().enumerate() {
                if at > 0 {
                    into.push(b',');
                }
                into.extend_from_slice(text.as_bytes());
            }
            Ok(())
        }
    };
}

impl UsageCounters {
    fn new(requests: &IntCounterVec, tokens: &IntCounterVec, values: &[String]) -> Self {
        let tokens = KINDS.map(|kind| {
            let values: Vec<&str> = values.iter().map(String::as_str).chain([kind]).collect();
            tokens.with_label_values(&values)
        });
        Self {
            requests: requests.with_label_values(values),
            tokens,
        }
    }

    fn count(&self, usage: Option<&Usage>) {
        self.requests.inc();
        let Some(usage) = usage else {
            return;
        };
        let kinds = [
            Some(usage.prompt_tokens),
            usage.completion_tokens,
            usage.cached_tokens,
            usage.cache_write_tokens,
            usage.reasoning_tokens,
        ];
        for (counter, tokens) in self.tokens.iter().zip(kinds) {
            counter.inc_by(tokens.unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use fastllm_contract::{Metadata, MetadataValue};
    use fastllm_wire::Usage;

    use super::{LabelError, MetadataLabels, SETS};
    use crate::telemetry::Metrics;

    fn labels(text: &str) -> Result<MetadataLabels, LabelError> {
        text.parse()
    }

    fn metrics(text: &str) -> Metrics {
        let metrics = Metrics::new().unwrap();
        metrics.with_labels(&labels(text).unwrap()).unwrap()
    }

    fn said(members: &[(&str, MetadataValue<'_>)]) -> Metadata {
        let mut metadata = Metadata::default();
        for (name, value) in members {
            metadata.push(name, *value).unwrap();
        }
        metadata
    }

    fn text(value: &str) -> MetadataValue<'_> {
        MetadataValue::Text(value)
    }

    fn lines(metrics: &Metrics) -> Vec<String> {
        let text = String::from_utf8(metrics.render(None)).unwrap();
        let usage = text.lines().filter(|line| {
            line.starts_with("fastllm_usage_requests") || line.starts_with("fastllm_usage_tokens")
        });
        usage.map(str::to_owned).collect()
    }

    #[test]
    fn names_are_validated() {
        assert_eq!(labels("").unwrap(), MetadataLabels::default());
        assert_eq!(
            labels("team, cost-center").unwrap().to_string(),
            "team,cost-center"
        );
        for (wrong, why) in [
            ("a,,b", "1 to 64 characters"),
            ("a\u{1}b", "1 to 64 characters"),
            ("model", "already in use"),
            ("kind", "already in use"),
            ("a.b,a-b", "another member has the same label"),
            ("__a", "two underscores"),
            ("1a", "digit"),
            ("a,b,c,d,e,f,g,h,i", "at most 8"),
        ] {
            let error = labels(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn no_usage_metrics_without_labels() {
        let metrics = metrics("");
        metrics.used(Some(&said(&[("team", text("a"))])), None);
        assert_eq!(lines(&metrics), [""; 0]);
    }

    #[test]
    fn usage_is_counted_by_configured_members_only() {
        let metrics = metrics("team,cost-center");
        let usage = Usage {
            prompt_tokens: 7,
            completion_tokens: Some(3),
            cached_tokens: Some(2),
            ..Usage::default()
        };
        let who = said(&[
            ("team", text("a")),
            ("cost-center", MetadataValue::Integer(42)),
            ("user", text("secret")),
        ]);
        metrics.used(Some(&who), Some(&usage));
        metrics.used(Some(&who), None);
        metrics.used(None, Some(&usage));
        let lines = lines(&metrics);
        for line in [
            "fastllm_usage_requests_total{cost_center=\"42\",team=\"a\"} 2",
            "fastllm_usage_requests_total{cost_center=\"\",team=\"\"} 1",
            "fastllm_usage_tokens_total{cost_center=\"42\",kind=\"prompt\",team=\"a\"} 7",
            "fastllm_usage_tokens_total{cost_center=\"42\",kind=\"completion\",team=\"a\"} 3",
            "fastllm_usage_tokens_total{cost_center=\"42\",kind=\"cached\",team=\"a\"} 2",
        ] {
            assert!(
                lines.iter().any(|found| found == line),
                "{line}\n{lines:#?}"
            );
        }
        assert!(!lines.iter().any(|line| line.contains("secret")));
    }

    #[test]
    fn a_list_is_one_label_value_with_commas() {
        let metrics = metrics("tags");
        let mut tagged = Metadata::default();
        tagged.push_list("tags", &["team:search", "batch"]).unwrap();
        metrics.used(Some(&tagged), None);
        metrics.used(Some(&tagged), None);
        let line = "fastllm_usage_requests_total{tags=\"team:search,batch\"} 2".to_owned();
        assert!(lines(&metrics).contains(&line), "{:?}", lines(&metrics));
    }

    #[test]
    fn label_sets_are_bounded() {
        let metrics = metrics("team");
        for team in 0..SETS + 50 {
            let who = said(&[("team", text(&format!("t{team}")))]);
            metrics.used(Some(&who), None);
            metrics.used(Some(&who), None);
        }
        let requests: Vec<_> = lines(&metrics)
            .into_iter()
            .filter(|line| line.starts_with("fastllm_usage_requests"))
            .collect();
        assert_eq!(requests.len(), SETS + 1);
        assert!(requests.contains(&"fastllm_usage_requests_total{team=\"other\"} 100".to_owned()));
        assert!(requests.contains(&"fastllm_usage_requests_total{team=\"t0\"} 2".to_owned()));
    }
}
