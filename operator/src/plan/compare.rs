//! Whether a live object has every field that was asked for.

use serde_json::Value;

/// Whether `live` has every member of `wanted` with its value. What others
/// added (defaults, injected sidecars, annotations) does not count.
#[must_use]
pub fn covers(live: &Value, wanted: &Value) -> bool {
    covers_as(live, wanted, false)
}

fn covers_as(live: &Value, wanted: &Value, quantity: bool) -> bool {
    match (live, wanted) {
        (_, Value::Null) => true,
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            let quantities =
                quantity || matches!(name.as_str(), "limits" | "requests" | "sizeLimit");
            let found = live.get(name).unwrap_or(&Value::Null);
            covers_as(found, wanted, quantities)
        }),
        (Value::Array(live), Value::Array(wanted)) => covers_list(live, wanted),
        (Value::String(live), Value::String(wanted)) if quantity => same_quantity(live, wanted),
        (live, wanted) => live == wanted,
    }
}

/// Lists of named items (containers, variables, volumes) are sets by name, as
/// the API server merges them; others must be equal in length and order.
fn covers_list(live: &[Value], wanted: &[Value]) -> bool {
    let name = |item: &Value| item.get("name").cloned();
    if !wanted.is_empty() && wanted.iter().all(|item| name(item).is_some()) {
        return wanted.iter().all(|wanted| {
            let found = live.iter().find(|live| name(live) == name(wanted));
            found.is_some_and(|live| covers(live, wanted))
        });
    }
    live.len() == wanted.len() && live.iter().zip(wanted).all(|(l, w)| covers(l, w))
}

/// The API server writes quantities in a form of its own: `0.5` as `500m`.
fn same_quantity(a: &str, b: &str) -> bool {
    a == b || matches!((nano(a), nano(b)), (Some(a), Some(b)) if a == b)
}

/// A quantity in billionths.
fn nano(text: &str) -> Option<i128> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
    let scale = match suffix {
        "" => 1_000_000_000,
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "k" => 1_000_000_000_000,
        _ => large(suffix)?.checked_mul(1_000_000_000)?,
    };
    let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some(digits.checked_mul(scale)? / divisor)
}

fn large(suffix: &str) -> Option<i128> {
    let power = |letter: &str| u32::try_from(1 + "KMGTPE".find(letter)?).ok();
    if let Some(letter) = suffix.strip_suffix('i') {
        return 1024_i128.checked_pow(power(letter)?);
    }
    match suffix.strip_prefix(['e', 'E']).filter(|e| !e.is_empty()) {
        Some(exponent) => 10_i128.checked_pow(exponent.parse().ok()?),
        None => 1000_i128.checked_pow(power(suffix)?),
    }
}
