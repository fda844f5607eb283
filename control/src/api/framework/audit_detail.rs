use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::db::AuditEntry;

/// The detail of an audit record: the operation, the ID of its object, and each
/// changed field before and after.
///
/// Invariant: it is built from what the API returns, which contains no secrets. A
/// changed secret is recorded as `set` or `cleared` ([`AuditDetail::secret`]).
pub(crate) struct AuditDetail {
    operation: Cow<'static, str>,
    id: Option<i64>,
    changes: Map<String, Value>,
}

impl AuditDetail {
    pub(crate) fn new(operation: impl Into<Cow<'static, str>>) -> Self {
        Self {
            operation: operation.into(),
            id: None,
            changes: Map::new(),
        }
    }

    /// The object of the operation.
    #[must_use]
    pub(crate) fn id(mut self, id: i64) -> Self {
        self.id = Some(id);
        self
    }

    /// A value without a previous one.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.changes
            .insert(name.to_owned(), json!({ "after": value.into() }));
        self
    }

    /// All fields of a created row.
    #[must_use]
    pub(crate) fn created(self, row: &impl Serialize) -> Self {
        self.changed(&Value::Null, row)
    }

    /// All fields of a deleted row.
    #[must_use]
    pub(crate) fn deleted(self, row: &impl Serialize) -> Self {
        self.changed(row, &Value::Null)
    }

    /// The fields that differ between two states of a row.
    #[must_use]
    pub(crate) fn changed(mut self, before: &impl Serialize, after: &impl Serialize) -> Self {
        let (before, after) = (fields(before), fields(after));
        let names = before
            .keys()
            .chain(after.keys().filter(|name| !before.contains_key(*name)));
        for name in names {
            let (old, new) = (before.get(name), after.get(name));
            let same = old.unwrap_or(&Value::Null) == new.unwrap_or(&Value::Null);
            if !same {
                let pair = [("before", old), ("after", new)]
                    .into_iter()
                    .filter_map(|(side, value)| Some((side.to_owned(), value?.clone())));
                self.changes
                    .insert(name.clone(), Value::Object(pair.collect()));
            }
        }
        self
    }

    /// Whether a secret was set or cleared; `None` if it was kept.
    #[must_use]
    pub(crate) fn secret(mut self, name: &str, is_set: Option<bool>) -> Self {
        if let Some(is_set) = is_set {
            let word = if is_set { "set" } else { "cleared" };
            self.changes.insert(name.to_owned(), json!(word));
        }
        self
    }

    pub(crate) fn entry(self) -> AuditEntry {
        let Self {
            operation,
            id,
            changes,
        } = self;
        let mut detail = Map::new();
        detail.insert("operation".to_owned(), json!(operation));
        if let Some(id) = id {
            detail.insert("id".to_owned(), json!(id));
        }
        detail.insert("changes".to_owned(), Value::Object(changes));
        AuditEntry {
            detail: Value::Object(detail),
        }
    }
}

fn fields(row: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(row) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detail_contains_changed_fields_only() {
        let before = json!({ "name": "m", "price": null, "policy": "round-robin" });
        let after = json!({ "name": "m", "price": 3, "policy": null });
        let entry = AuditDetail::new("model.update")
            .id(4)
            .changed(&before, &after)
            .entry();
        assert_eq!(
            entry.detail,
            json!({
                "operation": "model.update",
                "id": 4,
                "changes": {
                    "price": { "before": null, "after": 3 },
                    "policy": { "before": "round-robin", "after": null },
                },
            })
        );
    }
}
