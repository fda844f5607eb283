//! Comparison of a live object with a manifest.

use fastllm_crds::quantity_nanos;
use serde_json::Value;

/// How server-side apply merges a field of the applied manifests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MergeStrategy {
    /// Member by member. Members of other managers are kept.
    Members,
    /// As a whole. An additional member is a change.
    Atomic,
    /// Item by item. Items are the same if these members are equal.
    Items(&'static [&'static str]),
}

/// How server-side apply merges the field with this name. A test compares the
/// strategies with the API server's schemas. Lists that are not mentioned are atomic.
#[must_use]
pub fn merge_strategy(field: &str) -> MergeStrategy {
    match field {
        "labelSelector" | "nodeSelector" | "secretKeyRef" | "selector" => MergeStrategy::Atomic,
        "containers" | "env" | "imagePullSecrets" | "volumes" => MergeStrategy::Items(&["name"]),
        "ownerReferences" => MergeStrategy::Items(&["uid"]),
        // Those of containers and those of Services.
        "ports" => MergeStrategy::Items(&["containerPort", "port", "protocol"]),
        "topologySpreadConstraints" => MergeStrategy::Items(&["topologyKey", "whenUnsatisfiable"]),
        "volumeMounts" => MergeStrategy::Items(&["mountPath"]),
        _ => MergeStrategy::Members,
    }
}

/// Whether an apply of `desired` would change nothing in `live`. What other managers
/// added where server-side apply keeps it (defaults, injected sidecars, annotations)
/// is ignored.
#[must_use]
pub fn covers(live: &Value, desired: &Value) -> bool {
    Comparison {
        strategy: MergeStrategy::Members,
        quantity: false,
    }
    .covers(live, desired)
}

/// The comparison of a field.
#[derive(Clone, Copy)]
struct Comparison {
    strategy: MergeStrategy,
    /// Whether strings are quantities.
    quantity: bool,
}

impl Comparison {
    fn covers(self, live: &Value, desired: &Value) -> bool {
        match (live, desired) {
            (_, Value::Null) => true,
            (Value::Object(live), Value::Object(desired)) => {
                let additional = |name: &String| desired.get(name).is_none_or(Value::is_null);
                if self.strategy == MergeStrategy::Atomic && live.keys().any(additional) {
                    return false;
                }
                desired.iter().all(|(name, desired)| {
                    let found = live.get(name).unwrap_or(&Value::Null);
                    self.member(name).covers(found, desired)
                })
            }
            (Value::Array(live), Value::Array(desired)) => self.covers_list(live, desired),
            (Value::String(live), Value::String(desired)) if self.quantity => {
                same_quantity(live, desired)
            }
            (live, desired) => live == desired,
        }
    }

    /// The comparison of a member. What is atomic consists of atomic parts.
    fn member(self, name: &str) -> Self {
        let strategy = match self.strategy {
            MergeStrategy::Atomic => MergeStrategy::Atomic,
            MergeStrategy::Members | MergeStrategy::Items(_) => merge_strategy(name),
        };
        let quantity = self.quantity || matches!(name, "limits" | "requests" | "sizeLimit");
        Self { strategy, quantity }
    }

    fn covers_list(self, live: &[Value], desired: &[Value]) -> bool {
        let MergeStrategy::Items(keys) = self.strategy else {
            return live.len() == desired.len()
                && live.iter().zip(desired).all(|(l, w)| self.covers(l, w));
        };
        let same = |a: &Value, b: &Value| keys.iter().all(|key| a.get(key) == b.get(key));
        desired.iter().all(|desired| {
            let found = live.iter().find(|live| same(live, desired));
            found.is_some_and(|live| self.covers(live, desired))
        })
    }
}

/// The API server normalizes quantities: `0.5` becomes `500m`.
fn same_quantity(a: &str, b: &str) -> bool {
    a == b || matches!((quantity_nanos(a), quantity_nanos(b)), (Some(a), Some(b)) if a == b)
}
