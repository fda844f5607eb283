use std::collections::BTreeMap;

use fastllm_contract::{PrincipalId, Rule as Described, Timestamp};
use http::{HeaderMap, HeaderValue};

use super::{LocalTime, Rule};
use crate::fixture::{ask, key, principal, routing_state, snapshot};
use crate::virtual_model::{RouteQuery, RuleSkipped};
use crate::{Caller, identify};

fn someone() -> Caller {
    let mut somebody = principal(1, &[]);
    somebody.roles = vec!["inference".to_owned(), "batch".to_owned()];
    let snapshot = snapshot(Vec::new(), vec![somebody], &[key("sk", 1)]);
    identify(&routing_state(&snapshot), Some(b"sk"), Timestamp(0)).unwrap()
}

fn rule(change: impl FnOnce(&mut Described)) -> Rule {
    let mut described = Described::default();
    change(&mut described);
    Rule::build(&described)
}

fn outcome(rule: &Rule, change: impl FnOnce(&mut RouteQuery<'_>)) -> Option<RuleSkipped> {
    let mut headers = HeaderMap::new();
    headers.append("x-tier", HeaderValue::from_static("gold"));
    headers.append("x-tier", HeaderValue::from_static("batch"));
    let mut query = ask(&headers);
    change(&mut query);
    rule.mismatch(&someone(), &query)
}

/// A moment of 2026-11-27, a Friday, in UTC.
fn friday(hour: i64, minute: i64) -> Timestamp {
    Timestamp(((20_784 * 24 + hour) * 60 + minute) * 60_000_000)
}

#[test]
fn rule_without_conditions_matches() {
    assert_eq!(outcome(&rule(|_| {}), |_| {}), None);
    let anyone = rule(|_| {});
    let headers = HeaderMap::new();
    assert_eq!(anyone.mismatch(&Caller::Anonymous, &ask(&headers)), None);
}

#[test]
fn principals_and_roles_must_both_match() {
    let case = |principals: &[u64], roles: &[&str]| {
        rule(|rule| {
            rule.caller.principals = principals.iter().copied().map(PrincipalId).collect();
            rule.caller.roles = roles.iter().map(ToString::to_string).collect();
        })
    };
    assert_eq!(outcome(&case(&[7, 1], &[]), |_| {}), None);
    assert_eq!(outcome(&case(&[], &["other", "batch"]), |_| {}), None);
    assert_eq!(outcome(&case(&[1], &["batch"]), |_| {}), None);
    assert_eq!(
        outcome(&case(&[7], &["batch"]), |_| {}),
        Some(RuleSkipped::Principal)
    );
    assert_eq!(
        outcome(&case(&[1], &["other"]), |_| {}),
        Some(RuleSkipped::Role)
    );
    let headers = HeaderMap::new();
    for named in [case(&[1], &[]), case(&[], &["batch"])] {
        assert!(named.mismatch(&Caller::Anonymous, &ask(&headers)).is_some());
    }
}

#[test]
fn token_bounds_are_inclusive() {
    let sized = rule(|rule| {
        rule.shape.min_prompt_tokens = Some(10);
        rule.shape.max_prompt_tokens = Some(20);
    });
    for (tokens, holds) in [(9, false), (10, true), (20, true), (21, false)] {
        let reason = (!holds).then_some(RuleSkipped::PromptTokens);
        assert_eq!(outcome(&sized, |ask| ask.prompt_tokens = tokens), reason);
    }
    let low = rule(|rule| rule.shape.max_max_tokens = Some(5));
    let high = rule(|rule| rule.shape.min_max_tokens = Some(5));
    for (ceiling, holds) in [
        (None, [false; 2]),
        (Some(4), [true, false]),
        (Some(5), [true; 2]),
    ] {
        for (rule, holds) in [&low, &high].into_iter().zip(holds) {
            let reason = (!holds).then_some(RuleSkipped::MaxTokens);
            assert_eq!(
                outcome(rule, |ask| ask.max_tokens = ceiling),
                reason,
                "{ceiling:?}"
            );
        }
    }
    let streamed = rule(|rule| rule.shape.stream = Some(true));
    assert_eq!(outcome(&streamed, |ask| ask.stream = true), None);
    assert_eq!(outcome(&streamed, |_| {}), Some(RuleSkipped::Stream));
}

#[test]
fn every_header_must_match_exactly() {
    let case = |headers: &[(&str, &str)]| {
        rule(|rule| {
            let headers = headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            rule.headers = headers.collect::<BTreeMap<_, _>>();
        })
    };
    assert_eq!(outcome(&case(&[("X-Tier", "batch")]), |_| {}), None);
    for wrong in [
        &[("x-tier", "Batch")] as &[_],
        &[("x-tier", "batch"), ("x-other", "1")],
        &[("not a name", "batch")],
    ] {
        assert_eq!(
            outcome(&case(wrong), |_| {}),
            Some(RuleSkipped::Header),
            "{wrong:?}"
        );
    }
}

#[test]
fn unknown_budget_matches_nothing() {
    let spent = rule(|rule| rule.min_budget_used_percent = Some(80));
    assert_eq!(outcome(&spent, |_| {}), Some(RuleSkipped::Budget));
    assert_eq!(
        outcome(&spent, |ask| ask.budget_used_percent = Some(80)),
        None
    );
    let fresh = rule(|rule| rule.max_budget_used_percent = Some(50));
    let reason = outcome(&fresh, |ask| ask.budget_used_percent = Some(51));
    assert_eq!(reason, Some(RuleSkipped::Budget));
}

#[test]
fn class_condition_never_matches() {
    let classed = rule(|rule| rule.class = Some("code".to_owned()));
    assert_eq!(outcome(&classed, |_| {}), Some(RuleSkipped::Class));
}

#[test]
fn time_windows_include_their_start_and_may_span_midnight() {
    let window = |after, before| {
        rule(|rule| {
            rule.after_minute = after;
            rule.before_minute = before;
        })
    };
    let holds = |rule: &Rule, hour, minute| {
        let reason = outcome(rule, |ask| ask.at = friday(hour, minute));
        assert!(reason.is_none() || reason == Some(RuleSkipped::TimeOfDay));
        reason.is_none()
    };
    let day = window(Some(8 * 60), Some(17 * 60));
    assert!(holds(&day, 8, 0) && holds(&day, 16, 59));
    assert!(!holds(&day, 7, 59) && !holds(&day, 17, 0));
    let night = window(Some(22 * 60), Some(6 * 60));
    assert!(holds(&night, 22, 0) && holds(&night, 5, 59) && holds(&night, 0, 0));
    assert!(!holds(&night, 21, 59) && !holds(&night, 6, 0));
    assert!(holds(&window(Some(60), None), 23, 59) && !holds(&window(Some(60), None), 0, 59));
    assert!(holds(&window(None, Some(60)), 0, 59) && !holds(&window(None, Some(60)), 1, 0));
}

#[test]
fn weekdays_follow_the_utc_offset() {
    let case = |days: &[u8], offset| {
        rule(|rule| {
            rule.days = days.to_vec();
            rule.utc_offset_minutes = offset;
        })
    };
    let late = |ask: &mut RouteQuery<'_>| ask.at = friday(23, 30);
    assert_eq!(outcome(&case(&[1, 5], 0), late), None);
    assert_eq!(outcome(&case(&[6], 0), late), Some(RuleSkipped::Weekday));
    assert_eq!(outcome(&case(&[6], 60), late), None);
    assert_eq!(outcome(&case(&[4], -24 * 60), late), None);
}

#[test]
fn the_clock_goes_back_before_1970() {
    let time = |micros, offset| {
        let LocalTime { minute, weekday } = LocalTime::of(Timestamp(micros), offset);
        (minute, weekday)
    };
    assert_eq!(time(0, 0), (0, 4));
    assert_eq!(time(-1, 0), (24 * 60 - 1, 3));
    assert_eq!(time(0, -1), (24 * 60 - 1, 3));
    assert_eq!(time(friday(0, 0).0, 0), (0, 5));
}
