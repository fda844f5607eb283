//! The tuning block, `fastllm`: its numeric members.

use fastllm_contract::PolicyKind;
use fastllm_engine::Tuning;

use super::unsupported::{Setting, ignored};
use super::value::{MappingReader, Value};

/// Members of releases that supported tuning them; they have no effect.
const FORMER: [Setting; 1] = [ignored(
    &["prefix_bytes"],
    "conversations are recognized by their messages, whatever their size",
)];

/// Reads the tuning; `policy` is the default of models that name none.
pub(super) fn read(fields: &mut MappingReader<'_>, policy: PolicyKind) -> Tuning {
    let usual = Tuning::default();
    let mut number = |name: &str, most: u64| {
        let value = fields.take(name);
        value.and_then(|value| value.number::<u64>(0..=most))
    };
    let balance_abs = number("balance_abs", 1_000_000);
    let affinity_slots = number("affinity_slots", 1 << 24);
    let affinity_slots = affinity_slots.and_then(|slots| usize::try_from(slots).ok());
    let unhealthy_after = number("unhealthy_after", 1000);
    let unhealthy_after = unhealthy_after.and_then(|after| u32::try_from(after).ok());
    let balance_rel = fields.take("balance_rel").and_then(|value| ratio(&value));
    fields.unsupported(&FORMER);
    Tuning {
        policy,
        balance_abs: balance_abs.unwrap_or(usual.balance_abs),
        balance_rel_percent: balance_rel.unwrap_or(usual.balance_rel_percent),
        affinity_slots: affinity_slots.unwrap_or(usual.affinity_slots),
        unhealthy_after: unhealthy_after.unwrap_or(usual.unhealthy_after),
    }
}

/// A ratio of at least 1, converted to the percentage above 1.
fn ratio(value: &Value<'_>) -> Option<u64> {
    const MAX_RATIO: f64 = 1000.0;
    let ratio = value.text()?.parse::<f64>().ok();
    let Some(ratio) = ratio.filter(|ratio| (1.0..=MAX_RATIO).contains(ratio)) else {
        value.error(format!("expected a number from 1.0 to {MAX_RATIO}"));
        return None;
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to 99,900"
    )]
    Some(((ratio - 1.0) * 100.0).round() as u64)
}
