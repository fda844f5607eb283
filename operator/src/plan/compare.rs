//! Comparison of a live object with a manifest.

use fastllm_crds::quantity_nanos;
use serde_json::Value;

/// Whether `live` contains every member of `desired` with the same value. Additional
/// members (defaults, injected sidecars, annotations) are ignored.
#[must_use]
pub fn covers(live: &Value, desired: &Value) -> bool {
    covers_as(live, desired, false)
}

fn covers_as(live: &Value, desired: &Value, quantity: bool) -> bool {
    match (live, desired) {
        (_, Value::Null) => true,
        (Value::Object(live), Value::Object(desired)) => desired.iter().all(|(name, desired)| {
            let quantities =
                quantity || matches!(name.as_str(), "limits" | "requests" | "sizeLimit");
            let found = live.get(name).unwrap_or(&Value::Null);
            covers_as(found, desired, quantities)
        }),
        (Value::Array(live), Value::Array(desired)) => covers_list(live, desired),
        (Value::String(live), Value::String(desired)) if quantity => same_quantity(live, desired),
        (live, desired) => live == desired,
    }
}

/// Lists of named items (containers, variables, volumes) are compared by name, as
/// the API server merges them; other lists must be equal.
fn covers_list(live: &[Value], desired: &[Value]) -> bool {
    let name = |item: &Value| item.get("name").cloned();
    if !desired.is_empty() && desired.iter().all(|item| name(item).is_some()) {
        return desired.iter().all(|desired| {
            let found = live.iter().find(|live| name(live) == name(desired));
            found.is_some_and(|live| covers(live, desired))
        });
    }
    live.len() == desired.len() && live.iter().zip(desired).all(|(l, w)| covers(l, w))
}

/// The API server normalizes quantities: `0.5` becomes `500m`.
fn same_quantity(a: &str, b: &str) -> bool {
    a == b || matches!((quantity_nanos(a), quantity_nanos(b)), (Some(a), Some(b)) if a == b)
}
