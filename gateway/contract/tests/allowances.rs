//! Golden files of limits, budgets and prices.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Debug;
use std::num::NonZeroU64;

use fastllm_contract::{
    Budget, BudgetId, BudgetShare, BudgetState, BudgetUsage, ConcurrencyGrant, ConcurrencyUsage,
    Grant, KeyEntry, KeyId, LimitReport, LimitReportReply, LimitShare, LimitUsage, Limits,
    LimitsState, MetadataValue, Micros, ModelAllowance, ModelName, ModelPrices, Prices, Principal,
    PrincipalId, Subject, Team, TeamId, Timestamp, Tokens, UsageEvent, WindowLength,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const AT: Timestamp = Timestamp(1_800_000_000_000_000);

fn limits() -> Limits {
    Limits {
        requests_per_min: NonZeroU64::new(60),
        tokens_per_min: NonZeroU64::new(90_000),
        concurrency: NonZeroU64::new(4),
    }
}

fn budget(id: u64, time_zone: Option<&str>) -> Budget {
    Budget {
        id: BudgetId(id),
        tokens_total: Some(Tokens(1_000_000)),
        cost_total_micros: Some(Micros(25_000_000)),
        window: WindowLength::Monthly,
        time_zone: time_zone.map(str::to_owned),
        window_start: AT,
    }
}

fn model() -> ModelName {
    ModelName::new("qwen").unwrap()
}

/// Written as it is kept here, and read as it was.
fn is_kept<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, golden: &str) {
    let written = serde_json::to_string_pretty(value).unwrap();
    assert_eq!(written.trim(), golden.trim());
    assert_eq!(&serde_json::from_str::<T>(golden).unwrap(), value);
}

#[test]
fn limits_and_budgets_have_stable_forms() {
    let principal = Principal {
        id: PrincipalId(1),
        name: "app".to_owned(),
        allow_all: true,
        allowed_models: Vec::new(),
        roles: Vec::new(),
        team: Some(TeamId(3)),
        limits: Some(limits()),
        budget: Some(budget(7, None)),
        models: vec![ModelAllowance {
            model: model(),
            limits: None,
            budget: Some(budget(8, Some("Europe/Berlin"))),
        }],
    };
    is_kept(&principal, include_str!("golden/principal-allowances.json"));
    let key = KeyEntry {
        id: KeyId(9),
        principal: PrincipalId(1),
        expires_at: None,
        disabled: false,
        limits: Some(Box::new(limits())),
        budget: Some(Box::new(budget(9, None))),
    };
    is_kept(&key, include_str!("golden/key-allowances.json"));
    let team = Team {
        id: TeamId(3),
        name: "team".to_owned(),
        limits: Some(limits()),
        budget: None,
    };
    is_kept(&team, include_str!("golden/team.json"));
}

#[test]
fn limits_state_has_a_stable_form() {
    let limits_state = LimitsState {
        replicas: 2,
        prices: vec![ModelPrices {
            model: model(),
            prices: Prices {
                input_price_per_mtok: Some(Micros(3_000_000)),
                output_price_per_mtok: Some(Micros(15_000_000)),
                image_price: Some(Micros(40_000)),
                ..Prices::default()
            },
        }],
        budgets: vec![BudgetState {
            budget: BudgetId(7),
            window_start: AT,
            tokens_used: Tokens(10),
            cost_used_micros: Micros(20),
        }],
    };
    is_kept(&limits_state, include_str!("golden/limits-state.json"));
}

#[test]
fn limit_report_and_reply_have_stable_forms() {
    let count = |subject| LimitUsage {
        subject,
        requests: 5,
        tokens: 700,
        concurrency: None,
    };
    let report = LimitReport {
        replica_id: "gateway-0".to_owned(),
        boot_id: "b00t".to_owned(),
        counts: vec![
            count(Subject::Principal(PrincipalId(1))),
            count(Subject::Model(PrincipalId(1), model())),
            count(Subject::Key(KeyId(9))),
            LimitUsage {
                concurrency: Some(ConcurrencyUsage { limit: 8, held: 3 }),
                ..count(Subject::Team(TeamId(3)))
            },
        ],
        budgets: vec![BudgetUsage {
            budget: BudgetId(7),
            window_start: AT,
            tokens: Tokens(1),
            tokens_reserved: Tokens(2),
            cost_micros: Micros(3),
            cost_reserved_micros: Micros(4),
        }],
    };
    is_kept(&report, include_str!("golden/limit-report.json"));
    let shares = LimitReportReply {
        replicas: 2,
        allowances: vec![LimitShare {
            subject: Subject::Principal(PrincipalId(1)),
            requests_share: 0.75,
            tokens_share: 0.5,
            concurrency: Some(ConcurrencyGrant {
                limit: 8,
                granted: 5,
            }),
        }],
        budgets: vec![BudgetShare {
            budget: BudgetId(7),
            window_start: AT,
            share: 0.25,
            tokens: Some(Grant {
                total: 100,
                granted: 30,
                used_by_others: 60,
            }),
            cost_micros: None,
        }],
        duplicate_replica: false,
    };
    is_kept(&shares, include_str!("golden/limit-report-reply.json"));
}

#[test]
fn a_granted_part_follows_a_changed_limit() {
    let grant = |granted, limit| ConcurrencyGrant { limit, granted };
    for (grant, limit, part) in [
        (grant(5, 8), 8, 5),
        (grant(5, 8), 4, 2),
        (grant(5, 8), 16, 10),
        (grant(9, 8), 8, 8),
        (grant(1, 0), 5, 0),
        (grant(u64::MAX, u64::MAX), u64::MAX, u64::MAX),
    ] {
        assert_eq!(grant.part_of(limit), part);
    }
}

#[test]
fn unknown_subjects_of_a_report_are_ignored() {
    let original = r#"{"replica_id": "a", "counts": [
        {"principal_id": 1, "requests": 2, "tokens": 3},
        {"planet": "mars", "requests": 2}]}"#;
    let read: LimitReport = serde_json::from_str(original).unwrap();
    assert_eq!(read.counts.len(), 1);
    assert_eq!((read.counts[0].requests, read.counts[0].tokens), (2, 3));
    let newer = r#"{"id": 7, "window": "yearly", "window_start": 0, "mood": 1}"#;
    let read: Budget = serde_json::from_str(newer).unwrap();
    assert_eq!(read.window, WindowLength::Unknown);
}

#[test]
fn usage_event_classes_and_metadata_have_stable_forms() {
    let text = include_str!("golden/usage-event-classes.json");
    let event: UsageEvent = serde_json::from_str(text).unwrap();
    is_kept(&event, text);
    assert_eq!(event.audio_ms, Some(61_500));
    assert_eq!(event.images, Some(2));
    let said = event.metadata.unwrap();
    let expected = [
        ("batch", MetadataValue::Integer(42)),
        ("canary", MetadataValue::Flag(true)),
        ("ratio", MetadataValue::Float(0.5)),
        ("team", MetadataValue::Text("a")),
    ];
    assert!(said.iter().eq(expected));
}

#[test]
fn lists_in_metadata_have_a_stable_form() {
    let text = include_str!("golden/usage-event-lists.json");
    let event: UsageEvent = serde_json::from_str(text).unwrap();
    is_kept(&event, text);
    let metadata = event.metadata.unwrap();
    let Some(MetadataValue::List(tags)) = metadata.get("tags") else {
        panic!("no list: {metadata:?}");
    };
    assert!(tags.iter().eq(["team:search", "nightly"]));
}

#[test]
fn split_report_is_complete_and_within_the_limit() {
    let most = u64::try_from(LimitReport::MAX_ENTRIES).unwrap();
    let split = |counts: u64, budgets: u64| {
        let report = LimitReport {
            replica_id: "a".to_owned(),
            boot_id: "b".to_owned(),
            counts: (0..counts)
                .map(|id| LimitUsage {
                    subject: Subject::Key(KeyId(id)),
                    requests: 1,
                    tokens: 2,
                    concurrency: None,
                })
                .collect(),
            budgets: (0..budgets)
                .map(|id| BudgetUsage {
                    budget: BudgetId(id),
                    window_start: AT,
                    tokens: Tokens(1),
                    tokens_reserved: Tokens(0),
                    cost_micros: Micros(0),
                    cost_reserved_micros: Micros(0),
                })
                .collect(),
        };
        let parts = report.clone().split();
        let mut whole = LimitReport {
            counts: Vec::new(),
            budgets: Vec::new(),
            ..report.clone()
        };
        let mut sizes = Vec::new();
        for part in parts {
            assert_eq!((&*part.replica_id, &*part.boot_id), ("a", "b"));
            sizes.push((part.counts.len() as u64, part.budgets.len() as u64));
            whole.counts.extend(part.counts);
            whole.budgets.extend(part.budgets);
        }
        assert_eq!(whole, report);
        sizes
    };
    assert_eq!(split(0, 0), [(0, 0)]);
    assert_eq!(split(most, 1), [(most, 1)]);
    assert_eq!(split(1, most + 1), [(1, most), (0, 1)]);
    let sizes = [(most, most), (most, 3), (5, 0)];
    assert_eq!(split(2 * most + 5, most + 3), sizes);
}
