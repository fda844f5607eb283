//! The conditions of a rule: as they are shown, given, changed and checked.

use std::collections::BTreeMap;

use http::HeaderName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::targets::{self, NewTarget};
use crate::api::framework::{ApiError, ErrorCode, Patch, patch};
use crate::db::rules::{Conditions, RuleFields};

/// Most entries of a list of principals, roles or headers.
const MOST_LISTED: usize = 256;
const MOST_HEADER_VALUE: usize = 1024;
/// A condition on one of them would put a credential into the configuration.
const CREDENTIAL_HEADERS: [&str; 6] = [
    "api-key",
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-goog-api-key",
];

/// When a rule holds: all of it has to.
#[derive(Serialize, ToSchema)]
pub(crate) struct ConditionsView {
    /// The caller is one of these; none: whoever it is.
    principals: Vec<i64>,
    /// The caller holds one of these roles; none: whatever it holds.
    roles: Vec<String>,
    min_prompt_tokens: Option<u64>,
    max_prompt_tokens: Option<u64>,
    min_max_tokens: Option<u64>,
    max_max_tokens: Option<u64>,
    stream: Option<bool>,
    headers: BTreeMap<String, String>,
    min_budget_used_percent: Option<u8>,
    max_budget_used_percent: Option<u8>,
    max_inflight_per_backend: Option<u32>,
    /// `HH:MM`.
    after: Option<String>,
    /// `HH:MM`.
    before: Option<String>,
    /// Monday is 1; none: every day.
    days: Vec<u8>,
    utc_offset_minutes: i32,
    /// A later release wrote conditions that this one does not know: the rule
    /// is not published, and cannot be changed.
    unreadable: bool,
}

impl From<RuleFields> for ConditionsView {
    fn from(fields: RuleFields) -> Self {
        let RuleFields {
            position: _,
            principals,
            roles,
            conditions,
        } = fields;
        let unreadable = conditions.is_none();
        let Conditions {
            min_prompt_tokens,
            max_prompt_tokens,
            min_max_tokens,
            max_max_tokens,
            stream,
            headers,
            min_budget_used_percent,
            max_budget_used_percent,
            max_inflight_per_backend,
            after_minute,
            before_minute,
            days,
            utc_offset_minutes,
        } = conditions.unwrap_or_default();
        Self {
            principals,
            roles,
            min_prompt_tokens,
            max_prompt_tokens,
            min_max_tokens,
            max_max_tokens,
            stream,
            headers,
            min_budget_used_percent,
            max_budget_used_percent,
            max_inflight_per_backend,
            after: after_minute.map(time_of_day),
            before: before_minute.map(time_of_day),
            days,
            utc_offset_minutes,
            unreadable,
        }
    }
}

/// A rule to be made: its conditions, all of which have to hold (none: it
/// always does), and where requests go then.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRule {
    /// By default after all others.
    #[schema(minimum = 0, maximum = 1_000_000)]
    position: Option<i32>,
    /// At least one.
    targets: Vec<NewTarget>,
    /// The caller is one of these.
    principals: Option<Vec<i64>>,
    /// The caller holds one of these roles.
    roles: Option<Vec<String>>,
    /// Least estimated size of the prompt.
    min_prompt_tokens: Option<u64>,
    /// Largest estimated size of the prompt.
    #[schema(minimum = 1)]
    max_prompt_tokens: Option<u64>,
    /// Least ceiling that the client sets.
    min_max_tokens: Option<u64>,
    /// Largest ceiling that the client sets.
    max_max_tokens: Option<u64>,
    stream: Option<bool>,
    /// Headers that are there with exactly these values.
    headers: Option<BTreeMap<String, String>>,
    /// Least used share of the caller's tighter budget.
    #[schema(maximum = 100)]
    min_budget_used_percent: Option<u8>,
    /// Largest used share of it.
    #[schema(maximum = 100)]
    max_budget_used_percent: Option<u8>,
    /// Some healthy backend of the rule's targets has fewer requests under way.
    #[schema(minimum = 1)]
    max_inflight_per_backend: Option<u32>,
    /// From this time of the day on; later than `before`, the window spans
    /// midnight.
    #[schema(example = "22:00")]
    after: Option<String>,
    /// Before this time of the day.
    #[schema(example = "06:00")]
    before: Option<String>,
    /// Monday is 1.
    days: Option<Vec<u8>>,
    /// What is added to UTC before the clock is read.
    #[schema(minimum = -1440, maximum = 1440)]
    utc_offset_minutes: Option<i32>,
    /// Refused: there are no prompt classes.
    class: Option<String>,
}

/// Changes of a rule: absent keeps, `null` clears a condition.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RulePatch {
    /// The rule that has it, and those after it, move on by one.
    #[schema(nullable = false, minimum = 0, maximum = 1_000_000)]
    #[serde(default, deserialize_with = "patch::present")]
    position: Option<i32>,
    /// In place of all that it has; at least one.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "patch::present")]
    pub(crate) targets: Option<Vec<NewTarget>>,
    #[schema(value_type = Option<Vec<i64>>)]
    #[serde(default)]
    principals: Patch<Vec<i64>>,
    #[schema(value_type = Option<Vec<String>>)]
    #[serde(default)]
    roles: Patch<Vec<String>>,
    #[schema(value_type = Option<u64>)]
    #[serde(default)]
    min_prompt_tokens: Patch<u64>,
    #[schema(value_type = Option<u64>, minimum = 1)]
    #[serde(default)]
    max_prompt_tokens: Patch<u64>,
    #[schema(value_type = Option<u64>)]
    #[serde(default)]
    min_max_tokens: Patch<u64>,
    #[schema(value_type = Option<u64>)]
    #[serde(default)]
    max_max_tokens: Patch<u64>,
    #[schema(value_type = Option<bool>)]
    #[serde(default)]
    stream: Patch<bool>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    #[serde(default)]
    headers: Patch<BTreeMap<String, String>>,
    #[schema(value_type = Option<u8>, maximum = 100)]
    #[serde(default)]
    min_budget_used_percent: Patch<u8>,
    #[schema(value_type = Option<u8>, maximum = 100)]
    #[serde(default)]
    max_budget_used_percent: Patch<u8>,
    #[schema(value_type = Option<u32>, minimum = 1)]
    #[serde(default)]
    max_inflight_per_backend: Patch<u32>,
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    after: Patch<String>,
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    before: Patch<String>,
    #[schema(value_type = Option<Vec<u8>>)]
    #[serde(default)]
    days: Patch<Vec<u8>>,
    #[schema(value_type = Option<i32>, minimum = -1440, maximum = 1440)]
    #[serde(default)]
    utc_offset_minutes: Patch<i32>,
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    class: Patch<String>,
}

impl NewRule {
    /// The rule as a change from nothing, by default at `position`; with its
    /// targets.
    pub(crate) fn fields(self, position: i32) -> Result<(RuleFields, Vec<NewTarget>), ApiError> {
        let patch = RulePatch {
            position: self.position,
            targets: None,
            principals: self.principals.into(),
            roles: self.roles.into(),
            min_prompt_tokens: self.min_prompt_tokens.into(),
            max_prompt_tokens: self.max_prompt_tokens.into(),
            min_max_tokens: self.min_max_tokens.into(),
            max_max_tokens: self.max_max_tokens.into(),
            stream: self.stream.into(),
            headers: self.headers.into(),
            min_budget_used_percent: self.min_budget_used_percent.into(),
            max_budget_used_percent: self.max_budget_used_percent.into(),
            max_inflight_per_backend: self.max_inflight_per_backend.into(),
            after: self.after.into(),
            before: self.before.into(),
            days: self.days.into(),
            utc_offset_minutes: self.utc_offset_minutes.into(),
            class: self.class.into(),
        };
        let nothing = RuleFields {
            position,
            principals: Vec::new(),
            roles: Vec::new(),
            conditions: Some(Conditions::default()),
        };
        Ok((patch.apply(nothing)?, self.targets))
    }
}

impl RulePatch {
    /// The rule afterwards; its targets are not looked at.
    pub(crate) fn apply(self, old: RuleFields) -> Result<RuleFields, ApiError> {
        let before = old.conditions.ok_or_else(unreadable)?;
        if let Patch::Set(_) = self.class {
            return Err(ApiError::invalid(
                "class",
                "class: there are no prompt classes to route by",
            ));
        }
        let position = self.position.map(targets::position).transpose()?;
        let principals = self.principals.try_map(listed("principals"))?;
        let roles = self.roles.try_map(listed("roles"))?;
        let conditions = Conditions {
            min_prompt_tokens: self.min_prompt_tokens.apply(before.min_prompt_tokens),
            max_prompt_tokens: self.max_prompt_tokens.apply(before.max_prompt_tokens),
            min_max_tokens: self.min_max_tokens.apply(before.min_max_tokens),
            max_max_tokens: self.max_max_tokens.apply(before.max_max_tokens),
            stream: self.stream.apply(before.stream),
            headers: list(self.headers.try_map(headers)?, before.headers),
            min_budget_used_percent: self
                .min_budget_used_percent
                .apply(before.min_budget_used_percent),
            max_budget_used_percent: self
                .max_budget_used_percent
                .apply(before.max_budget_used_percent),
            max_inflight_per_backend: self
                .max_inflight_per_backend
                .apply(before.max_inflight_per_backend),
            after_minute: self
                .after
                .try_map(minute_of_day("after"))?
                .apply(before.after_minute),
            before_minute: self
                .before
                .try_map(minute_of_day("before"))?
                .apply(before.before_minute),
            days: list(self.days.try_map(listed("days"))?, before.days),
            utc_offset_minutes: list(self.utc_offset_minutes, before.utc_offset_minutes),
        };
        can_hold(&conditions)?;
        Ok(RuleFields {
            position: position.unwrap_or(old.position),
            principals: list(principals, old.principals),
            roles: list(roles, old.roles),
            conditions: Some(conditions),
        })
    }
}

/// What is empty (or 0) when it is cleared.
fn list<T: Default>(patch: Patch<T>, old: T) -> T {
    patch.apply(Some(old)).unwrap_or_default()
}

fn unreadable() -> ApiError {
    ApiError::new(
        ErrorCode::Unreadable,
        "a later release wrote this rule: it can only be deleted",
    )
}

/// Sorted, each once.
fn listed<T: Ord>(field: &'static str) -> impl Fn(Vec<T>) -> Result<Vec<T>, ApiError> {
    move |mut values| {
        if values.len() > MOST_LISTED {
            return Err(ApiError::invalid(
                field,
                format!("{field} may have {MOST_LISTED} entries at most"),
            ));
        }
        values.sort_unstable();
        values.dedup();
        Ok(values)
    }
}

/// Names in lower case, values as a header can have them.
fn headers(given: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    let wrong = |reason: &str| ApiError::invalid("headers", format!("headers: {reason}"));
    if given.len() > MOST_LISTED {
        return Err(wrong("too many"));
    }
    let mut checked = BTreeMap::new();
    for (name, value) in given {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| wrong("a name is none that a header can have"))?;
        if CREDENTIAL_HEADERS.contains(&name.as_str()) {
            return Err(wrong(
                "credentials do not belong into rules: use principals or roles",
            ));
        }
        let fits = value.len() <= MOST_HEADER_VALUE
            && value.trim() == value
            && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !fits {
            return Err(wrong(
                "a value must be printable ASCII without spaces around it",
            ));
        }
        if checked.insert(name.as_str().to_owned(), value).is_some() {
            return Err(wrong("a name is there twice"));
        }
    }
    Ok(checked)
}

fn time_of_day(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

fn minute_of_day(field: &'static str) -> impl Fn(String) -> Result<u16, ApiError> {
    move |text| {
        let number = |digits: &str, most: u16| {
            let plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
            let number: u16 = digits.parse().ok().filter(|_| plain)?;
            (number <= most).then_some(number)
        };
        text.split_once(':')
            .and_then(|(hour, minute)| Some(number(hour, 23)? * 60 + number(minute, 59)?))
            .ok_or_else(|| {
                ApiError::invalid(field, format!("{field} must be a time from 00:00 to 23:59"))
            })
    }
}

/// Refuses what is out of range, and what no request can ever fulfil.
fn can_hold(conditions: &Conditions) -> Result<(), ApiError> {
    let wrong =
        |field: &str, reason: &str| Err(ApiError::invalid(field, format!("{field} {reason}")));
    let Conditions {
        min_prompt_tokens,
        max_prompt_tokens,
        min_max_tokens,
        max_max_tokens,
        stream: _,
        headers: _,
        min_budget_used_percent,
        max_budget_used_percent,
        max_inflight_per_backend,
        after_minute,
        before_minute,
        days,
        utc_offset_minutes,
    } = conditions;
    ordered("prompt_tokens", *min_prompt_tokens, *max_prompt_tokens)?;
    ordered("max_tokens", *min_max_tokens, *max_max_tokens)?;
    let (least, most) = (*min_budget_used_percent, *max_budget_used_percent);
    ordered(
        "budget_used_percent",
        least.map(u64::from),
        most.map(u64::from),
    )?;
    if least.is_some_and(|percent| percent > 100) {
        return wrong("min_budget_used_percent", "must be from 0 to 100");
    }
    if most.is_some_and(|percent| percent > 100) {
        return wrong("max_budget_used_percent", "must be from 0 to 100");
    }
    if *max_prompt_tokens == Some(0) {
        return wrong("max_prompt_tokens", "must be 1 or more: no prompt is empty");
    }
    if *max_inflight_per_backend == Some(0) {
        return wrong(
            "max_inflight_per_backend",
            "must be 1 or more: none is below 0",
        );
    }
    if before_minute.is_some() && before_minute == after_minute {
        return wrong("before", "is the same as after: no time is between them");
    }
    if *before_minute == Some(0) && after_minute.is_none() {
        return wrong("before", "is 00:00: no time of a day is before it");
    }
    if !days.iter().all(|day| (1..=7).contains(day)) {
        return wrong("days", "are from 1 (Monday) to 7");
    }
    if !(-1440..=1440).contains(utc_offset_minutes) {
        return wrong("utc_offset_minutes", "must be from -1440 to 1440");
    }
    Ok(())
}

fn ordered(what: &str, least: Option<u64>, most: Option<u64>) -> Result<(), ApiError> {
    if least.zip(most).is_some_and(|(least, most)| least > most) {
        return Err(ApiError::invalid(
            &format!("min_{what}"),
            format!("min_{what} must not be above max_{what}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
