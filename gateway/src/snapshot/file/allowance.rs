//! Limits and budget of a principal: `limits` and `budget` of its entry.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use fastllm_contract::{
    Budget, BudgetId, Limits, ModelAllowance, ModelName, Timestamp, Tokens, WindowLength,
};
use fastllm_engine::window::time_zone_name;

use super::unsupported::{Setting, restriction};
use super::value::{MappingReader, SourceSpan, Value};

/// The highest limit per minute, as in the control plane.
const MAX_LIMIT: u64 = 1_000_000_000;

/// The names of each limit: the first is this program's, the others are
/// LiteLLM's.
const REQUESTS: [&str; 3] = ["requests_per_min", "rpm", "rpm_limit"];
const TOKENS: [&str; 3] = ["tokens_per_min", "tpm", "tpm_limit"];
const CONCURRENCY: [&str; 2] = ["concurrency", "max_parallel_requests"];

/// Limits and budget, where given. The budget's ID is assigned later.
pub(super) fn read(fields: &mut MappingReader<'_>) -> (Option<Limits>, Option<Budget>) {
    let limits = fields.take("limits");
    let inner = limits.and_then(|value| {
        value.fields(|fields| {
            let limits = limits_of(fields);
            fields.refuse_unknown();
            limits
        })
    });
    let (inner, outer) = (inner.unwrap_or_default(), limits_of(fields));
    // The stricter one applies where both are given.
    let limits = Limits {
        requests_per_min: stricter(inner.requests_per_min, outer.requests_per_min),
        tokens_per_min: stricter(inner.tokens_per_min, outer.tokens_per_min),
        concurrency: stricter(inner.concurrency, outer.concurrency),
    };
    let budget = fields.take("budget");
    let budget = budget.and_then(|value| {
        value.fields(|fields| {
            let budget = budget_of(fields);
            fields.unsupported(&[BUDGET]);
            fields.refuse_unknown();
            budget
        })?
    });
    (
        Some(limits).filter(|limits| *limits != Limits::default()),
        budget,
    )
}

/// Members of a budget that need prices.
const BUDGET: Setting = restriction(
    &["budget_duration", "cost_total", "max_budget", "soft_budget"],
    "costs are counted with a control plane only; use tokens_total and window",
);

fn stricter(one: Option<NonZeroU64>, other: Option<NonZeroU64>) -> Option<NonZeroU64> {
    one.into_iter().chain(other).min()
}

fn limits_of(fields: &mut MappingReader<'_>) -> Limits {
    let mut limit = |names: &[&str]| limit(&fields.take_any(names)?);
    Limits {
        requests_per_min: limit(&REQUESTS),
        tokens_per_min: limit(&TOKENS),
        concurrency: limit(&CONCURRENCY),
    }
}

fn limit(value: &Value<'_>) -> Option<NonZeroU64> {
    NonZeroU64::new(value.number(1..=MAX_LIMIT)?)
}

/// Limits of a principal for one model.
pub(super) struct ModelLimits {
    model: ModelName,
    limits: Limits,
    span: SourceSpan,
}

impl ModelLimits {
    pub(super) fn allowance(&self) -> ModelAllowance {
        ModelAllowance {
            model: self.model.clone(),
            limits: Some(self.limits),
            budget: None,
        }
    }

    /// The model, and where it is in the file.
    pub(super) fn into_spot(self) -> (ModelName, SourceSpan) {
        (self.model, self.span)
    }
}

/// LiteLLM's `model_rpm_limit` and `model_tpm_limit`, sorted by model.
pub(super) fn by_model(fields: &mut MappingReader<'_>) -> Vec<ModelLimits> {
    let mut by_model: BTreeMap<ModelName, (Limits, SourceSpan)> = BTreeMap::new();
    for name in ["model_rpm_limit", "model_tpm_limit"] {
        let members = fields.take(name).map(|value| value.members());
        for (model, value) in members.unwrap_or_default() {
            let Ok(model) = ModelName::new(model) else {
                value.error("not the name of a model");
                continue;
            };
            let entry = by_model.entry(model);
            let (limits, _) = entry.or_insert_with(|| (Limits::default(), value.span()));
            match name {
                "model_rpm_limit" => limits.requests_per_min = limit(&value),
                _ => limits.tokens_per_min = limit(&value),
            }
        }
    }
    let limits = |(model, (limits, span))| ModelLimits {
        model,
        limits,
        span,
    };
    by_model.into_iter().map(limits).collect()
}

/// Spending is not stored in this mode, so a total budget starts over with the
/// process. Costs are not counted, because there are no prices.
fn budget_of(fields: &mut MappingReader<'_>) -> Option<Budget> {
    let total = fields.required("tokens_total");
    let total: Option<u64> = total.and_then(|value| value.number(0..=u64::MAX >> 4));
    let used = fields.take("tokens_used");
    let used: u64 = used
        .and_then(|value| value.number(0..=u64::MAX >> 4))
        .unwrap_or(0);
    let window = fields.take("window").and_then(|value| length(&value));
    let zone = fields.take("time_zone").and_then(|value| zone(&value));
    Some(Budget {
        id: BudgetId(0),
        tokens_total: Some(Tokens(total?.saturating_sub(used))),
        cost_total_micros: None,
        window: window.unwrap_or(WindowLength::Monthly),
        time_zone: Some(zone.unwrap_or_else(|| "UTC".to_owned())),
        window_start: Timestamp(0),
    })
}

fn length(value: &Value<'_>) -> Option<WindowLength> {
    match value.text()? {
        "daily" => Some(WindowLength::Daily),
        "weekly" => Some(WindowLength::Weekly),
        "monthly" => Some(WindowLength::Monthly),
        _ => {
            value.error("expected daily, weekly or monthly");
            None
        }
    }
}

fn zone(value: &Value<'_>) -> Option<String> {
    let zone = time_zone_name(value.text()?);
    zone.map_err(|error| value.error(error.to_string())).ok()
}
