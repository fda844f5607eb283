//! Limits and budget of a principal: `limits` and `budget` of its entry.

use std::num::NonZeroU64;

use fastllm_contract::{Budget, BudgetId, Limits, Timestamp, Tokens, WindowLength};
use fastllm_engine::window::time_zone_name;

use super::value::{MappingReader, Value};

/// The highest limit per minute, as in the control plane.
const MOST: u64 = 1_000_000_000;

/// Limits and budget, where given. The budget's ID is assigned later.
pub(super) fn read(fields: &mut MappingReader<'_>) -> (Option<Limits>, Option<Budget>) {
    let limits = fields.take("limits");
    let limits = limits.and_then(|value| value.fields(limits_of));
    let budget = fields.take("budget");
    let budget = budget.and_then(|value| value.fields(budget_of).flatten());
    (limits.filter(|limits| *limits != Limits::default()), budget)
}

fn limits_of(fields: &mut MappingReader<'_>) -> Limits {
    let mut limit = |name: &str| {
        let value = fields.take(name)?;
        NonZeroU64::new(value.number(1..=MOST)?)
    };
    Limits {
        requests_per_min: limit("requests_per_min"),
        tokens_per_min: limit("tokens_per_min"),
        concurrency: limit("concurrency"),
    }
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
