use std::ops::RangeInclusive;

use fastllm_contract::{Rule as Described, RuleCaller, RuleShape, Timestamp};
use http::HeaderName;

use super::{RouteQuery, RuleSkipped, Targets};
use crate::caller::Caller;

/// A rule of a virtual model, ready for requests.
#[derive(Debug)]
pub(crate) struct Rule {
    described: Described,
    /// `None` if a header name is invalid: the rule never matches.
    headers: Option<Vec<(HeaderName, Vec<u8>)>>,
    targets: Targets,
}

impl Rule {
    pub(crate) fn build(described: &Described) -> Self {
        let headers = described
            .headers
            .iter()
            .map(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                Some((name, value.clone().into_bytes()))
            })
            .collect();
        Self {
            described: described.clone(),
            headers,
            targets: Targets::build(&described.targets),
        }
    }

    pub(crate) fn targets(&self) -> &Targets {
        &self.targets
    }

    /// The number of requests in flight that some backend of its targets must
    /// stay below.
    pub(crate) fn busy_at(&self) -> Option<u64> {
        self.described.max_inflight_per_backend.map(u64::from)
    }

    /// The first condition that does not match. The state of its targets is not
    /// checked here.
    pub(crate) fn mismatch(&self, caller: &Caller, ask: &RouteQuery<'_>) -> Option<RuleSkipped> {
        let Described {
            caller: who,
            shape,
            headers: _,
            min_budget_used_percent,
            max_budget_used_percent,
            max_inflight_per_backend: _,
            after_minute,
            before_minute,
            days,
            utc_offset_minutes,
            class,
            targets: _,
        } = &self.described;
        let budget = bounds(*min_budget_used_percent, *max_budget_used_percent);
        let local = LocalTime::of(ask.at, *utc_offset_minutes);
        if let Some(reason) = wrong_caller(who, caller).or_else(|| wrong_shape(shape, ask)) {
            Some(reason)
        } else if !self.headers_hold(ask) {
            Some(RuleSkipped::Header)
        } else if !within(budget.as_ref(), ask.budget_used_percent) {
            Some(RuleSkipped::Budget)
        } else if !local.is_between(*after_minute, *before_minute) {
            Some(RuleSkipped::TimeOfDay)
        } else if !days.is_empty() && !days.contains(&local.weekday) {
            Some(RuleSkipped::Weekday)
        } else if class.is_some() {
            // Prompts are not classified, so no class matches.
            Some(RuleSkipped::Class)
        } else {
            None
        }
    }

    fn headers_hold(&self, ask: &RouteQuery<'_>) -> bool {
        let Some(headers) = &self.headers else {
            return false;
        };
        headers
            .iter()
            .all(|(name, value)| ask.headers.has(name, value))
    }
}

fn wrong_caller(who: &RuleCaller, caller: &Caller) -> Option<RuleSkipped> {
    let RuleCaller { principals, roles } = who;
    let known = caller.identified().map(|identified| &identified.principal);
    if !principals.is_empty() && !known.is_some_and(|known| principals.contains(&known.id())) {
        return Some(RuleSkipped::Principal);
    }
    let holds = |role: &String| known.is_some_and(|known| known.has_role(role));
    (!roles.is_empty() && !roles.iter().any(holds)).then_some(RuleSkipped::Role)
}

fn wrong_shape(shape: &RuleShape, ask: &RouteQuery<'_>) -> Option<RuleSkipped> {
    let RuleShape {
        min_prompt_tokens,
        max_prompt_tokens,
        min_max_tokens,
        max_max_tokens,
        stream,
    } = shape;
    let prompt = bounds(*min_prompt_tokens, *max_prompt_tokens);
    let ceiling = bounds(*min_max_tokens, *max_max_tokens);
    if !within(prompt.as_ref(), Some(ask.prompt_tokens)) {
        Some(RuleSkipped::PromptTokens)
    } else if !within(ceiling.as_ref(), ask.max_tokens) {
        Some(RuleSkipped::MaxTokens)
    } else if stream.is_some_and(|stream| stream != ask.stream) {
        Some(RuleSkipped::Stream)
    } else {
        None
    }
}

/// Inclusive bounds; `None` without any.
fn bounds<T: Into<u64>>(min: Option<T>, max: Option<T>) -> Option<RangeInclusive<u64>> {
    let (min, max) = (min.map(Into::into), max.map(Into::into));
    (min.is_some() || max.is_some()).then(|| min.unwrap_or(0)..=max.unwrap_or(u64::MAX))
}

/// An unknown value is outside of every bound.
fn within<T: Into<u64>>(bounds: Option<&RangeInclusive<u64>>, value: Option<T>) -> bool {
    bounds.is_none_or(|bounds| value.is_some_and(|value| bounds.contains(&value.into())))
}

/// Local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LocalTime {
    /// Of the day.
    minute: u16,
    /// Monday is 1.
    weekday: u8,
}

impl LocalTime {
    fn of(at: Timestamp, offset_minutes: i32) -> Self {
        const DAY: i64 = 24 * 60;
        let minutes = at.0.div_euclid(60_000_000) + i64::from(offset_minutes);
        // 1970-01-01 was a Thursday.
        let weekday = (minutes.div_euclid(DAY) + 3).rem_euclid(7) + 1;
        Self {
            minute: u16::try_from(minutes.rem_euclid(DAY)).unwrap_or(0),
            weekday: u8::try_from(weekday).unwrap_or(1),
        }
    }

    /// `after` is inclusive, `before` exclusive; the window may span midnight.
    fn is_between(self, after: Option<u16>, before: Option<u16>) -> bool {
        let late = after.is_none_or(|after| self.minute >= after);
        let early = before.is_none_or(|before| self.minute < before);
        match (after, before) {
            (Some(after), Some(before)) if after > before => late || early,
            _ => late && early,
        }
    }
}

#[cfg(test)]
mod tests;
