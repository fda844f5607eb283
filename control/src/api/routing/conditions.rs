//! The conditions of a rule.

use std::collections::BTreeMap;
use std::mem;

use http::HeaderName;

use super::targets::{self, NewTarget};
use crate::api::framework::fields::resource;
use crate::api::framework::{ApiError, ErrorCode, Patch};
use crate::db::rules::{Conditions, RuleRow};

/// The maximum number of principals, roles, headers or days.
const MAX_LISTED: usize = 256;
const MAX_HEADER_VALUE: usize = 1024;
/// Conditions on these headers would put credentials into the configuration.
const CREDENTIAL_HEADERS: [&str; 6] = [
    "api-key",
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-goog-api-key",
];

resource! {
    /// The conditions of a rule, all of which have to hold.
    view ConditionsView from Conditions {
        /// A time of the day, `HH:MM`.
        after: Option<String> = after_minute.map(time_of_day),
        /// A time of the day, `HH:MM`.
        before: Option<String> = before_minute.map(time_of_day),
    }
    /// A rule to create: its targets, and its conditions, all of which have to hold. A
    /// rule without conditions always holds.
    new NewRule;
    /// Changes to a rule: an absent field keeps its value, `null` clears a condition.
    patch RulePatch;
    fields {
        /// Rules are tried in the order of their positions. A new rule is placed last by
        /// default; if an existing rule is moved to the position of another, that one and
        /// those after it move on by one.
        position: custom optional i32 [minimum = 0, maximum = 1_000_000],
        /// At least one target. In a change, replaces all targets.
        targets: custom required Vec<NewTarget>,
        /// IDs of principals, one of which is the caller.
        principals: custom nullable Vec<i64>,
        /// Names of roles, one of which the caller has.
        roles: custom nullable Vec<String>,
        /// The minimum estimated size of the prompt, in tokens.
        min_prompt_tokens: nullable u64,
        /// The maximum estimated size of the prompt, in tokens.
        max_prompt_tokens: nullable u64 [minimum = 1],
        /// The minimum `max_tokens` of the request.
        min_max_tokens: nullable u64,
        /// The maximum `max_tokens` of the request.
        max_max_tokens: nullable u64,
        /// Whether the request asks for a stream.
        stream: nullable bool,
        /// Headers that the request has with exactly these values.
        headers: clearable BTreeMap<String, String> => headers,
        /// The minimum used share of the caller's most used budget, in percent.
        min_budget_used_percent: nullable u8 [maximum = 100],
        /// The maximum used share of the caller's most used budget, in percent.
        max_budget_used_percent: nullable u8 [maximum = 100],
        /// A healthy backend of the rule's targets has fewer requests in flight.
        max_inflight_per_backend: nullable u32 [minimum = 1],
        /// The rule holds from this time of the day on. If it is later than `before`, the
        /// window spans midnight.
        after: custom nullable String [example = "22:00"],
        /// The rule holds before this time of the day.
        before: custom nullable String [example = "06:00"],
        /// Days of the week, from 1 (Monday) to 7; none means every day.
        days: clearable Vec<u8> => listed,
        /// The offset of `after`, `before` and `days` from UTC, in minutes.
        utc_offset_minutes: clearable i32 [minimum = -1440, maximum = 1440],
        /// Reserved; prompt classes are not supported.
        class: custom nullable String,
    }
}

impl NewRule {
    /// The new rule of a virtual model, by default at `position`, and its targets.
    pub(crate) fn into_row(
        self,
        virtual_model_id: i64,
        position: i32,
    ) -> Result<(RuleRow, Vec<NewTarget>), ApiError> {
        let nothing = RuleRow {
            id: 0,
            virtual_model_id,
            position,
            principals: Vec::new(),
            roles: Vec::new(),
            conditions: Some(Conditions::default()),
        };
        let mut patch = self.into_patch();
        let targets = patch.targets.take().unwrap_or_default();
        Ok((patch.change(nothing)?, targets))
    }
}

impl RulePatch {
    /// The targets that replace those of the rule.
    pub(crate) fn take_targets(&mut self) -> Option<Vec<NewTarget>> {
        self.targets.take()
    }

    /// The rule after the change, without its targets.
    pub(crate) fn change(mut self, old: RuleRow) -> Result<RuleRow, ApiError> {
        let mut conditions = old.conditions.ok_or_else(unreadable)?;
        if let Patch::Set(_) = self.class {
            return Err(ApiError::invalid(
                "class",
                "class: prompt classes are not supported",
            ));
        }
        let position = self.position.map(targets::position).transpose()?;
        let principals =
            mem::take(&mut self.principals).try_map(|ids| listed("principals", ids))?;
        let roles = mem::take(&mut self.roles).try_map(|names| listed("roles", names))?;
        let after = mem::take(&mut self.after).try_map(|text| minute_of_day("after", &text))?;
        let before = mem::take(&mut self.before).try_map(|text| minute_of_day("before", &text))?;
        self.apply_to(&mut conditions)?;
        conditions.after_minute = after.apply(conditions.after_minute);
        conditions.before_minute = before.apply(conditions.before_minute);
        check_satisfiable(&conditions)?;
        Ok(RuleRow {
            id: old.id,
            virtual_model_id: old.virtual_model_id,
            position: position.unwrap_or(old.position),
            principals: principals.apply(Some(old.principals)).unwrap_or_default(),
            roles: roles.apply(Some(old.roles)).unwrap_or_default(),
            conditions: Some(conditions),
        })
    }
}

fn unreadable() -> ApiError {
    ApiError::new(
        ErrorCode::Unreadable,
        "a later release wrote this rule; it can only be deleted",
    )
}

/// The values sorted, without duplicates.
fn listed<T: Ord>(field: &'static str, mut values: Vec<T>) -> Result<Vec<T>, ApiError> {
    if values.len() > MAX_LISTED {
        return Err(ApiError::invalid(
            field,
            format!("{field} may have at most {MAX_LISTED} entries"),
        ));
    }
    values.sort_unstable();
    values.dedup();
    Ok(values)
}

/// Checks names and values of headers; returns the names in lower case.
fn headers(
    field: &'static str,
    given: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, ApiError> {
    let wrong = |reason: &str| ApiError::invalid(field, format!("{field}: {reason}"));
    if given.len() > MAX_LISTED {
        return Err(wrong("too many"));
    }
    let mut checked = BTreeMap::new();
    for (name, value) in given {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| wrong("a name is not a valid header name"))?;
        if CREDENTIAL_HEADERS.contains(&name.as_str()) {
            return Err(wrong(
                "rules cannot match credentials; use principals or roles",
            ));
        }
        let fits = value.len() <= MAX_HEADER_VALUE
            && value.trim() == value
            && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !fits {
            return Err(wrong(
                "a value must be printable ASCII without surrounding spaces",
            ));
        }
        if checked.insert(name.as_str().to_owned(), value).is_some() {
            return Err(wrong("a name is listed twice"));
        }
    }
    Ok(checked)
}

fn time_of_day(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

fn minute_of_day(field: &'static str, text: &str) -> Result<u16, ApiError> {
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

/// Rejects values that are out of range, and conditions that no request can satisfy.
fn check_satisfiable(conditions: &Conditions) -> Result<(), ApiError> {
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
        return wrong(
            "max_prompt_tokens",
            "must be 1 or more because no prompt is empty",
        );
    }
    if *max_inflight_per_backend == Some(0) {
        return wrong("max_inflight_per_backend", "must be 1 or more");
    }
    if before_minute.is_some() && before_minute == after_minute {
        return wrong("before", "must differ from after");
    }
    if *before_minute == Some(0) && after_minute.is_none() {
        return wrong("before", "must not be 00:00 without after");
    }
    if !days.iter().all(|day| (1..=7).contains(day)) {
        return wrong("days", "must be from 1 (Monday) to 7");
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
