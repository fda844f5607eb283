use serde_json::{Value, json};

use super::*;
use crate::api::routing::rules::RuleView;

fn made(body: Value) -> Result<RuleRow, ApiError> {
    let mut body = body;
    body["targets"] = json!([{ "model_id": 1 }]);
    let rule: NewRule = serde_json::from_value(body).unwrap();
    rule.into_row(1, 0).map(|(row, _)| row)
}

#[test]
fn what_can_hold_is_taken_in_one_form() {
    let fields = made(json!({
        "principals": [3, 1, 3],
        "roles": ["b", "a"],
        "headers": { "X-Tier": "batch" },
        "after": "22:00",
        "before": "06:05",
        "days": [5, 1, 5],
        "utc_offset_minutes": -60,
    }))
    .unwrap();
    assert_eq!(fields.principals, [1, 3]);
    assert_eq!(fields.roles, ["a", "b"]);
    let conditions = fields.conditions.clone().unwrap();
    assert_eq!(conditions.headers["x-tier"], "batch");
    assert_eq!(
        (conditions.after_minute, conditions.before_minute),
        (Some(22 * 60), Some(6 * 60 + 5))
    );
    assert_eq!(conditions.days, [1, 5]);
    let view = serde_json::to_value(ConditionsView::from(conditions)).unwrap();
    assert_eq!(
        (&view["after"], &view["before"]),
        (&json!("22:00"), &json!("06:05"))
    );
}

#[test]
fn bounds_include_their_ends() {
    for body in [
        json!({}),
        json!({ "min_prompt_tokens": 5, "max_prompt_tokens": 5 }),
        json!({ "min_budget_used_percent": 0, "max_budget_used_percent": 100 }),
        json!({ "after": "00:00" }),
        json!({ "before": "00:00", "after": "22:00" }),
        json!({ "utc_offset_minutes": 1440 }),
        json!({ "max_inflight_per_backend": 1 }),
        json!({ "days": [] }),
    ] {
        assert!(made(body.clone()).is_ok(), "{body}");
    }
}

#[test]
fn what_cannot_hold_is_refused_by_field() {
    for (body, field) in [
        (
            json!({ "min_prompt_tokens": 6, "max_prompt_tokens": 5 }),
            "min_prompt_tokens",
        ),
        (
            json!({ "min_max_tokens": 6, "max_max_tokens": 5 }),
            "min_max_tokens",
        ),
        (
            json!({ "min_budget_used_percent": 6, "max_budget_used_percent": 5 }),
            "min_budget_used_percent",
        ),
        (
            json!({ "min_budget_used_percent": 101 }),
            "min_budget_used_percent",
        ),
        (
            json!({ "max_budget_used_percent": 101 }),
            "max_budget_used_percent",
        ),
        (json!({ "max_prompt_tokens": 0 }), "max_prompt_tokens"),
        (
            json!({ "max_inflight_per_backend": 0 }),
            "max_inflight_per_backend",
        ),
        (json!({ "after": "24:00" }), "after"),
        (json!({ "after": "7:00" }), "after"),
        (json!({ "after": "+7:00" }), "after"),
        (json!({ "before": "06:60" }), "before"),
        (json!({ "before": "00:00" }), "before"),
        (json!({ "after": "06:00", "before": "06:00" }), "before"),
        (json!({ "days": [0] }), "days"),
        (json!({ "days": [8] }), "days"),
        (json!({ "utc_offset_minutes": 1441 }), "utc_offset_minutes"),
        (json!({ "headers": { "a b": "c" } }), "headers"),
        (json!({ "headers": { "a": " c" } }), "headers"),
        (json!({ "headers": { "a": "c", "A": "d" } }), "headers"),
        (
            json!({ "headers": { "Authorization": "Bearer x" } }),
            "headers",
        ),
        (json!({ "class": "code" }), "class"),
        (json!({ "position": -1 }), "position"),
    ] {
        let error = made(body.clone()).unwrap_err();
        let message = format!("{error:?}");
        assert!(
            message.contains(&format!("field: Some(\"{field}\")")),
            "{body}: {message}"
        );
    }
}

#[test]
fn only_a_rule_without_conditions_always_holds() {
    assert!(made(json!({})).unwrap().always_holds());
    assert!(
        made(json!({ "utc_offset_minutes": 60 }))
            .unwrap()
            .always_holds()
    );
    for body in [
        json!({ "principals": [1] }),
        json!({ "roles": ["a"] }),
        json!({ "stream": false }),
        json!({ "headers": { "a": "" } }),
        json!({ "days": [1] }),
        json!({ "min_max_tokens": 0 }),
    ] {
        assert!(!made(body.clone()).unwrap().always_holds(), "{body}");
    }
}

/// To ignore a condition of a later release would widen the rule.
#[test]
fn conditions_of_a_later_release_are_kept_as_they_are() {
    let later = json!({ "stream": true, "moon": "full" });
    assert!(serde_json::from_value::<Conditions>(later).is_err());
    let row = RuleRow {
        id: 1,
        virtual_model_id: 1,
        position: 0,
        principals: Vec::new(),
        roles: Vec::new(),
        conditions: None,
    };
    assert!(!row.always_holds());
    let patch: RulePatch = serde_json::from_value(json!({})).unwrap();
    assert!(patch.change(row.clone()).is_err());
    let view = serde_json::to_value(RuleView::new(row, Vec::new())).unwrap();
    assert_eq!(view["unreadable"], true);
}
