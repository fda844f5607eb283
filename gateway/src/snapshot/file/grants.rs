//! The models that a grant stands for: a name, a pattern, or an access group.

use std::collections::{HashMap, HashSet};

use fastllm_contract::ModelName;

use super::models::Models;
use super::value::Value;

/// Names that keys may be granted.
#[derive(Debug)]
pub(super) struct Grantable<'m> {
    models: &'m Models,
    groups: &'m HashMap<String, HashSet<ModelName>>,
}

/// A grant of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Grant {
    Everything,
    Models(Vec<ModelName>),
}

impl<'m> Grantable<'m> {
    pub(super) fn new(models: &'m Models) -> Self {
        Self {
            models,
            groups: &models.groups,
        }
    }

    /// Reads a grant. A pattern or a group that stands for no model is reported.
    pub(super) fn read(&self, value: &Value<'_>) -> Option<Grant> {
        let text = value.text()?;
        match text {
            "*" | "all-proxy-models" => return Some(Grant::Everything),
            "no-default-models" => return Some(Grant::Models(Vec::new())),
            _ => {}
        }
        let name = value.model_name()?;
        if self.models.by_name.contains_key(&name) {
            return Some(Grant::Models(vec![name]));
        }
        if let Some(group) = self.groups.get(text) {
            return Some(Grant::Models(group.iter().cloned().collect()));
        }
        if !text.contains('*') {
            return Some(Grant::Models(vec![name]));
        }
        let models = self.models.by_name.keys();
        let matching: Vec<_> = models
            .filter(|model| matches(text.as_bytes(), model.as_str().as_bytes()))
            .cloned()
            .collect();
        if matching.is_empty() {
            value.warning("no model in model_list has such a name");
        }
        Some(Grant::Models(matching))
    }
}

/// Whether a name matches a pattern, in which `*` stands for any text.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|byte| *byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match (0..=rest.len()).find(|at| rest[*at..].starts_with(part)) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, expected) in [
            ("openai/*", "openai/gpt", true),
            ("openai/*", "openai/", true),
            ("openai/*", "open", false),
            ("*-mini", "gpt-4o-mini", true),
            ("*-mini", "gpt-4o-mini-2", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "", true),
            ("a", "a", true),
            ("a", "ab", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
