//! `fastllm.virtual_models`: names that route to other models.

use std::collections::BTreeMap;

use fastllm_contract::{
    ModelName, PrincipalId, Rule, RuleCaller, RuleShape, SplitBy, Target, VirtualModel,
};
use http::HeaderName;

use super::auth::{Auth, label};
use super::models::Models;
use super::value::{Context, MappingReader, Value};

/// Header fields that conditions may not use, because the configuration would
/// contain credentials.
const CREDENTIAL_HEADERS: [&str; 6] = [
    "api-key",
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-goog-api-key",
];

/// Names that rules may refer to.
pub(super) struct KnownNames<'k> {
    pub(super) models: &'k Models,
    pub(super) auth: &'k Auth,
}

/// Reads the list. A virtual model with an error is skipped entirely: without
/// one of its conditions or targets it would route differently.
pub(super) fn read(
    context: &Context<'_>,
    list: &[Value<'_>],
    names: &KnownNames<'_>,
) -> BTreeMap<ModelName, VirtualModel> {
    let mut by_name = BTreeMap::new();
    for value in list {
        let read = || value.fields(|fields| names.virtual_model(fields)).flatten();
        let Some(model) = context.entry(read) else {
            continue;
        };
        if by_name.contains_key(&model.name) {
            context.entry_error(value.span(), "an earlier virtual model has the same name");
        } else {
            by_name.insert(model.name.clone(), model);
        }
    }
    by_name
}

impl KnownNames<'_> {
    fn virtual_model(&self, fields: &mut MappingReader<'_>) -> Option<VirtualModel> {
        let name = fields.required("name").and_then(|value| {
            let name = value.model_name()?;
            if self.models.by_name.contains_key(&name) {
                value.error("a model in model_list has the same name");
                return None;
            }
            Some(name)
        });
        let split_by = fields.take("split_by").and_then(|value| split_by(&value));
        let rules = fields.list("rules");
        let rules: Vec<_> = rules
            .iter()
            .filter_map(|value| value.fields(|fields| self.rule(fields)))
            .collect();
        let default_targets = self.targets(&fields.list("default_targets"));
        if rules.is_empty() && default_targets.is_empty() {
            fields.error("expected rules or default_targets");
        }
        fields.reject_unknown();
        Some(VirtualModel {
            name: name?,
            rules,
            default_targets,
            split_by: split_by.unwrap_or_default(),
        })
    }

    fn targets(&self, list: &[Value<'_>]) -> Vec<Target> {
        list.iter().filter_map(|value| self.target(value)).collect()
    }

    /// A mapping, or just the name of the model.
    fn target(&self, value: &Value<'_>) -> Option<Target> {
        const USUAL_WEIGHT: u32 = 100;
        if value.is_scalar() {
            let model = self.model(value)?;
            let weight = USUAL_WEIGHT;
            return Some(Target { model, weight });
        }
        value.fields(|fields| {
            let model = fields
                .required("model")
                .and_then(|value| self.model(&value));
            let weight = fields
                .take("weight")
                .and_then(|value| value.number(0..=1_000_000));
            fields.reject_unknown();
            Some(Target {
                model: model?,
                weight: weight.unwrap_or(USUAL_WEIGHT),
            })
        })?
    }

    /// The name of an existing concrete model.
    pub(super) fn model(&self, value: &Value<'_>) -> Option<ModelName> {
        let name = value.model_name()?;
        if !self.models.by_name.contains_key(&name) {
            value.error("no model in model_list has this name");
            return None;
        }
        Some(name)
    }

    fn rule(&self, fields: &mut MappingReader<'_>) -> Rule {
        let targets = fields.list("targets");
        if targets.is_empty() {
            fields.error("expected targets");
        }
        let rule = Rule {
            caller: self.caller(fields),
            shape: shape(fields),
            headers: headers(fields),
            min_budget_used_percent: percent(fields, "min_budget_used_percent"),
            max_budget_used_percent: percent(fields, "max_budget_used_percent"),
            max_inflight_per_backend: fields
                .take("max_inflight_per_backend")
                .and_then(|value| value.number(1..=u64::from(u32::MAX))),
            after_minute: minute(fields, "after"),
            before_minute: minute(fields, "before"),
            days: days(fields),
            utc_offset_minutes: utc_offset(fields),
            class: class(fields),
            targets: self.targets(&targets),
        };
        check(&rule, fields);
        fields.reject_unknown();
        rule
    }

    fn caller(&self, fields: &mut MappingReader<'_>) -> RuleCaller {
        let principal = |value: &Value<'_>| -> Option<PrincipalId> {
            let found = self.auth.principal(value.text()?);
            if found.is_none() {
                value.error("no key in auth.keys has this name");
            }
            found
        };
        let role = |value: &Value<'_>| {
            let role = label(value)?;
            if !self.auth.has_role(&role) {
                value.warning("no key in auth.keys has this role");
            }
            Some(role)
        };
        let principals = fields.list("principals");
        let roles = fields.list("roles");
        RuleCaller {
            principals: principals.iter().filter_map(principal).collect(),
            roles: roles.iter().filter_map(role).collect(),
        }
    }
}

fn split_by(value: &Value<'_>) -> Option<SplitBy> {
    match value.text()? {
        "caller" => Some(SplitBy::Caller),
        "prompt" => Some(SplitBy::Prompt),
        _ => {
            value.error("expected caller or prompt");
            None
        }
    }
}

fn shape(fields: &mut MappingReader<'_>) -> RuleShape {
    let mut tokens = |name: &str, least: u64| {
        let value = fields.take(name);
        value.and_then(|value| value.number(least..=u64::MAX))
    };
    RuleShape {
        min_prompt_tokens: tokens("min_prompt_tokens", 0),
        max_prompt_tokens: tokens("max_prompt_tokens", 1),
        min_max_tokens: tokens("min_max_tokens", 0),
        max_max_tokens: tokens("max_max_tokens", 0),
        stream: fields.take("stream").and_then(|value| value.flag()),
    }
}

fn headers(fields: &mut MappingReader<'_>) -> BTreeMap<String, String> {
    let Some(headers) = fields.take("headers") else {
        return BTreeMap::new();
    };
    let mut checked = BTreeMap::new();
    for (name, value) in headers.members() {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            value.error("not a valid header name");
            continue;
        };
        if CREDENTIAL_HEADERS.contains(&name.as_str()) {
            value.error("rules must not contain credentials: use principals or roles");
        }
        let Some(text) = value.text() else { continue };
        if text.trim() != text || !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            value.error("expected printable ASCII without spaces around it");
        }
        if checked
            .insert(name.as_str().to_owned(), text.to_owned())
            .is_some()
        {
            value.error("given twice, with other capitals");
        }
    }
    checked
}

/// A share of a budget.
fn percent(fields: &mut MappingReader<'_>, name: &str) -> Option<u8> {
    fields.take(name)?.number(0..=100)
}

fn class(fields: &mut MappingReader<'_>) -> Option<String> {
    let value = fields.take("class")?;
    value.warning("never matches: prompts are not classified");
    label(&value)
}

fn days(fields: &mut MappingReader<'_>) -> Vec<u8> {
    let days = fields.list("days");
    let days = days.iter().filter_map(|value| value.number(1..=7));
    let mut days: Vec<_> = days.collect();
    days.sort_unstable();
    days.dedup();
    days
}

fn utc_offset(fields: &mut MappingReader<'_>) -> i32 {
    const MAX_MINUTES: i32 = 24 * 60;
    let Some(value) = fields.take("utc_offset_minutes") else {
        return 0;
    };
    let offset = value.text().and_then(|text| text.parse().ok());
    let offset = offset.filter(|offset| (-MAX_MINUTES..=MAX_MINUTES).contains(offset));
    offset.unwrap_or_else(|| {
        value.error(format!(
            "expected a whole number from -{MAX_MINUTES} to {MAX_MINUTES}"
        ));
        0
    })
}

/// A time of day, `HH:MM`, as the minute of the day.
fn minute(fields: &mut MappingReader<'_>, name: &str) -> Option<u16> {
    let value = fields.take(name)?;
    let number = |digits: &str, most: u16| {
        let two = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u16 = digits.parse().ok().filter(|_| two)?;
        (number <= most).then_some(number)
    };
    let parts = value.text()?.split_once(':');
    let minute =
        parts.and_then(|(hour, minute)| Some(number(hour, 23)? * 60 + number(minute, 59)?));
    if minute.is_none() {
        value.error("expected a time from 00:00 to 23:59, as in \"08:30\"");
    }
    minute
}

/// Rejects combinations of conditions that no request can match.
fn check(rule: &Rule, fields: &MappingReader<'_>) {
    fn above<T: PartialOrd>(least: Option<T>, most: Option<T>) -> bool {
        least.zip(most).is_some_and(|(least, most)| least > most)
    }
    let RuleShape {
        min_prompt_tokens,
        max_prompt_tokens,
        min_max_tokens,
        max_max_tokens,
        stream: _,
    } = rule.shape;
    for (what, wrong) in [
        ("prompt_tokens", above(min_prompt_tokens, max_prompt_tokens)),
        ("max_tokens", above(min_max_tokens, max_max_tokens)),
        (
            "budget_used_percent",
            above(rule.min_budget_used_percent, rule.max_budget_used_percent),
        ),
    ] {
        if wrong {
            fields.error(format!("min_{what} is above max_{what}"));
        }
    }
    if rule.before_minute.is_some() && rule.before_minute == rule.after_minute {
        fields.error("before is the same as after: no time is between them");
    }
    if rule.before_minute == Some(0) && rule.after_minute.is_none() {
        fields.error("before is 00:00: no time of a day is before it");
    }
}
