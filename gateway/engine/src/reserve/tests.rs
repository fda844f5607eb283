use std::num::NonZeroU64;
use std::thread;
use std::time::Duration;

use fastllm_contract::{
    Budget, BudgetId, BudgetSettlement, BudgetShare, BudgetState, ConcurrencyGrant, Grant,
    LimitReportReply, LimitShare, LimitUsage, Limits, LimitsState, Micros, ModelAllowance,
    ModelPrices, Prices, Principal, PrincipalId, Section, Subject, Team, TeamId, Timestamp, Tokens,
    WindowLength,
};
use http::HeaderMap;
use proptest::prelude::*;

use super::{ActualUsage, Cost, Reservation, reserve};
use crate::fixture::{self, key, model, name, principal};
use crate::identify::identify;
use crate::pool::Tuning;
use crate::pricing::Quantities;
use crate::refusal::{BudgetKind, LimitKind, LimitScope, Refusal};
use crate::route::{Chain, route};
use crate::state::RoutingState;

const DAY: i64 = 86_400;

fn at(seconds: i64) -> Timestamp {
    Timestamp(1_767_225_600_000_000 + seconds * 1_000_000)
}

fn limits(requests: Option<u64>, tokens: Option<u64>, concurrent: Option<u64>) -> Limits {
    Limits {
        requests_per_min: requests.and_then(NonZeroU64::new),
        tokens_per_min: tokens.and_then(NonZeroU64::new),
        concurrency: concurrent.and_then(NonZeroU64::new),
    }
}

fn budget(id: u64, tokens: Option<u64>, cost: Option<u64>) -> Budget {
    Budget {
        id: BudgetId(id),
        tokens_total: tokens.map(Tokens),
        cost_total_micros: cost.map(Micros),
        window: WindowLength::Daily,
        time_zone: None,
        window_start: at(0),
    }
}

/// Two models and these principals, each with a key of its name.
fn world(
    principals: Vec<Principal>,
    teams: Vec<Team>,
    held: Option<&RoutingState>,
) -> RoutingState {
    let names: Vec<_> = principals
        .iter()
        .map(|of| (of.name.clone(), of.id.0))
        .collect();
    let keys: Vec<_> = names.iter().map(|(name, id)| key(name, *id)).collect();
    let models = vec![model("large", &[1]), model("small", &[2])];
    let mut snapshot = fixture::snapshot(models, principals, &keys);
    snapshot.teams = Section::complete(format!("{teams:?}"), teams);
    snapshot.fallback_model = Some(name("small"));
    RoutingState::build(&snapshot, held, &Tuning::default())
        .unwrap()
        .state
}

fn with(limits: Option<Limits>, budget: Option<Budget>) -> Principal {
    Principal {
        limits,
        budget,
        ..principal(1, &["large"])
    }
}

fn alone(limits: Option<Limits>, budget: Option<Budget>) -> RoutingState {
    world(vec![with(limits, budget)], Vec::new(), None)
}

fn claim(now: Timestamp, prompt: u64, most: u64) -> Cost {
    Cost {
        at: now,
        prompt_tokens: prompt,
        max_tokens: Some(most),
        has_completion: true,
        choices: 1,
        quantities: Quantities::default(),
    }
}

fn chain(state: &RoutingState, who: &str, now: Timestamp) -> (crate::Caller, Chain) {
    let caller = identify(state, Some(who.as_bytes()), now).unwrap();
    let headers = HeaderMap::new();
    let chain = route(state, &caller, "large", &fixture::ask(&headers), None).unwrap();
    (caller, chain)
}

fn take(state: &RoutingState, who: &str, claim: &Cost) -> Result<Reservation, Refusal> {
    let (caller, mut chain) = chain(state, who, claim.at);
    reserve(&caller, &mut chain, claim, state.accounts()).map(|(reservation, _)| reservation)
}

fn one(state: &RoutingState, now: Timestamp, tokens: u64) -> Result<Reservation, Refusal> {
    take(state, "principal-1", &claim(now, tokens, 0))
}

fn settle(reservation: Reservation, now: Timestamp, tokens: u64) {
    reservation.settle(&ActualUsage {
        model: &name("large"),
        tokens: Some(Tokens(tokens)),
        cost: None,
        at: now,
    });
}

fn what(refusal: &Refusal) -> LimitKind {
    match refusal {
        Refusal::RateLimited(limited) => limited.kind,
        other => panic!("{other:?}"),
    }
}

/// The reported tokens of the only budget: settled and reserved.
fn grants(state: &RoutingState) -> (u64, u64) {
    let report = state
        .accounts()
        .limit_report("a".to_owned(), "b".to_owned(), at(0));
    let [one] = report.budgets[..] else {
        panic!("{report:?}");
    };
    (one.tokens.0, one.tokens_reserved.0)
}

#[test]
fn callers_without_limits_reserve_nothing() {
    let state = alone(None, None);
    for _ in 0..1000 {
        assert!(one(&state, at(0), 1 << 40).unwrap().is_empty());
    }
}

#[test]
fn refusal_reserves_nothing_and_reports_the_slowest_limit() {
    let state = alone(Some(limits(Some(2), Some(120), None)), None);
    drop(one(&state, at(0), 60).unwrap());
    // A minute's half of the tokens is left: enough for 30 seconds' worth.
    let refusal = one(&state, at(0), 120).unwrap_err();
    let Refusal::RateLimited(limited) = &refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(
        (limited.kind, limited.scope),
        (LimitKind::Tokens, LimitScope::Principal)
    );
    assert_eq!(limited.retry_after.as_secs(), 30);
    assert_eq!(limited.rate_limits.requests.unwrap().remaining, 1);
    assert_eq!(refusal.rate_limits().unwrap().tokens.unwrap().remaining, 60);
    // So the second request is still to be had.
    drop(one(&state, at(0), 1).unwrap());
    let refusal = one(&state, at(0), 120).unwrap_err();
    let Refusal::RateLimited(limited) = &refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(limited.kind, LimitKind::Tokens, "{refusal}");
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::Requests
    );
    let later = limited.retry_after.as_micros();
    let later = Timestamp(at(0).0 + i64::try_from(later).unwrap());
    drop(one(&state, later, 120).unwrap());
}

#[test]
fn request_above_a_whole_limit_is_refused_with_both_numbers() {
    let state = alone(Some(limits(None, Some(100), None)), None);
    let refusal = take(&state, "principal-1", &claim(at(0), 40, 61)).unwrap_err();
    assert_eq!(refusal.status(), 400);
    let text = refusal.to_string();
    assert!(text.contains("100") && text.contains("101"), "{text}");
    // An estimated response size is no reason to refuse.
    let guess = Cost {
        max_tokens: None,
        ..claim(at(0), 40, 0)
    };
    drop(take(&state, "principal-1", &guess).unwrap());
}

#[test]
fn all_choices_are_reserved_and_must_fit_the_limit() {
    let several = |choices, most| Cost {
        choices,
        max_tokens: most,
        ..claim(at(0), 40, 0)
    };
    let state = alone(Some(limits(None, Some(1000), None)), None);
    for (choices, need) in [(97, "1010"), (u64::MAX, &*u64::MAX.to_string())] {
        let larger = take(&state, "principal-1", &several(choices, Some(10))).unwrap_err();
        assert_eq!(larger.status(), 400);
        assert!(larger.to_string().contains(need), "{larger}");
    }
    // What has no tokens of its own needs no more of them.
    let none = Cost {
        has_completion: false,
        ..several(97, Some(10))
    };
    take(&state, "principal-1", &none).unwrap().cancel(at(0));
    drop(take(&state, "principal-1", &several(96, Some(10))).unwrap());
    assert_eq!(what(&one(&state, at(0), 1).unwrap_err()), LimitKind::Tokens);

    let state = alone(None, Some(budget(7, Some(1_000_000), None)));
    let held = take(&state, "principal-1", &several(4, Some(10))).unwrap();
    assert_eq!(grants(&state), (0, 80));
    let guess = take(&state, "principal-1", &several(3, None)).unwrap();
    let unknown = crate::pool::DEFAULT_COMPLETION_TOKENS;
    assert_eq!(grants(&state), (0, 80 + 40 + 3 * unknown));
    settle(held, at(0), 50);
    settle(guess, at(0), 50);
    assert_eq!(grants(&state), (100, 0));
}

/// The reported cost: settled and reserved.
fn money(state: &RoutingState) -> (u64, u64) {
    let report = state
        .accounts()
        .limit_report("a".to_owned(), "b".to_owned(), at(0));
    let one = &report.budgets[0];
    (one.cost_micros.0, one.cost_reserved_micros.0)
}

#[test]
fn cost_is_reserved_for_all_choices_and_other_quantities() {
    let state = alone(None, Some(budget(7, None, Some(1_000_000))));
    let apply_state = |prices| {
        state.accounts().apply_limits_state(&LimitsState {
            replicas: 1,
            prices: vec![ModelPrices {
                model: name("large"),
                prices,
            }],
            budgets: Vec::new(),
        });
    };
    let budget_hold = |claim: &Cost| {
        let held = take(&state, "principal-1", claim).unwrap();
        let (_, budget_hold) = money(&state);
        held.cancel(at(0));
        budget_hold
    };
    let quantities = Quantities {
        images: 4,
        input_characters: 2_000,
        audio_ms: 30_000,
        ..Quantities::default()
    };
    let claim = Cost {
        choices: 4,
        quantities,
        ..claim(at(0), 100, 10)
    };
    apply_state(Prices {
        input_price_per_mtok: Some(Micros(1_000_000)),
        output_price_per_mtok: Some(Micros(2_000_000)),
        ..Prices::default()
    });
    assert_eq!(budget_hold(&claim), 100 + 4 * 10 * 2);
    apply_state(Prices {
        image_price: Some(Micros(40)),
        input_price_per_mchar: Some(Micros(15_000)),
        audio_price_per_minute: Some(Micros(6_000)),
        ..Prices::default()
    });
    assert_eq!(budget_hold(&claim), 4 * 40 + 30 + 3_000);
    let endless = Cost {
        choices: u64::MAX,
        max_tokens: Some(u64::MAX),
        ..claim
    };
    apply_state(Prices {
        output_price_per_mtok: Some(Micros(u64::MAX)),
        ..Prices::default()
    });
    drop(take(&state, "principal-1", &endless).unwrap());
    assert_eq!(money(&state), (0, 0));
}

#[test]
fn drop_keeps_rate_debits_and_cancel_refunds_everything() {
    let state = alone(
        Some(limits(Some(3), Some(100), Some(1))),
        Some(budget(7, Some(100), None)),
    );
    let held = one(&state, at(0), 50).unwrap();
    assert_eq!(grants(&state), (0, 50));
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::Concurrency
    );
    drop(held);
    assert_eq!(grants(&state), (0, 0));
    assert_eq!(
        what(&one(&state, at(0), 51).unwrap_err()),
        LimitKind::Tokens
    );
    one(&state, at(0), 50).unwrap().cancel(at(0));
    let third = one(&state, at(0), 50).unwrap();
    settle(third, at(0), 10);
    assert_eq!(grants(&state), (10, 0));
    // 40 of the third came back.
    one(&state, at(0), 40).unwrap().cancel(at(0));
    assert_eq!(
        what(&one(&state, at(0), 41).unwrap_err()),
        LimitKind::Tokens
    );
}

#[test]
fn excess_usage_is_debited_within_a_minute_only() {
    let state = alone(Some(limits(None, Some(60), None)), None);
    let long = one(&state, at(0), 60).unwrap();
    settle(one(&state, at(60), 10).unwrap(), at(60), 100);
    // 50 were left; 90 more were used: 41 are missing.
    let refusal = one(&state, at(60), 1).unwrap_err();
    assert_eq!(refusal.retry_after().unwrap().as_secs(), 41);
    settle(long, at(60), 0);
    assert_eq!(one(&state, at(60), 1).unwrap_err(), refusal);
    drop(one(&state, at(101), 1).unwrap());
}

#[test]
fn only_one_request_crosses_the_budget_border() {
    let state = alone(None, Some(budget(7, Some(100), None)));
    let first = one(&state, at(0), 60).unwrap();
    let second = one(&state, at(0), 60).unwrap();
    // All of it is reserved, nothing is spent: no 402.
    let refusal = one(&state, at(0), 1).unwrap_err();
    assert_eq!(
        (refusal.status(), what(&refusal)),
        (429, LimitKind::TokenBudget)
    );
    assert!(state.accounts().take_report_due() && !state.accounts().take_report_due());
    settle(first, at(0), 30);
    let third = one(&state, at(0), 10).unwrap();
    assert_eq!(one(&state, at(0), 1).unwrap_err().status(), 429);
    settle(second, at(0), 70);
    let refusal = one(&state, at(0), 1).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::BudgetExceeded {
            scope: LimitScope::Principal,
            kind: BudgetKind::Tokens
        }
    );
    assert_eq!(
        refusal.to_string(),
        "the token budget of this caller is spent"
    );
    settle(third, at(0), 5);
    assert_eq!(grants(&state), (105, 0));
}

#[test]
fn cost_is_reserved_by_the_most_expensive_candidate_and_settled_by_actual_cost() {
    let mut described = with(None, Some(budget(7, None, Some(1_000))));
    described.allowed_models.push(name("small"));
    let state = world(vec![described], Vec::new(), None);
    let price = |model: &str, input: u64| ModelPrices {
        model: name(model),
        prices: Prices {
            input_price_per_mtok: Some(Micros(input)),
            output_price_per_mtok: Some(Micros(input)),
            ..Prices::default()
        },
    };
    state.accounts().apply_limits_state(&LimitsState {
        replicas: 1,
        prices: vec![price("large", 1_000_000), price("small", 10_000_000)],
        budgets: Vec::new(),
    });
    let taken = one(&state, at(0), 90).unwrap();
    let reserved = |state: &RoutingState| {
        let report = state
            .accounts()
            .limit_report("a".to_owned(), "b".to_owned(), at(0));
        (
            report.budgets[0].cost_micros.0,
            report.budgets[0].cost_reserved_micros.0,
        )
    };
    assert_eq!(reserved(&state), (0, 900));
    taken.settle(&ActualUsage {
        model: &name("large"),
        tokens: Some(Tokens(90)),
        cost: Some(Micros(990)),
        at: at(0),
    });
    assert_eq!(reserved(&state), (990, 0));
    one(&state, at(0), 10).unwrap().settle(&ActualUsage {
        model: &name("large"),
        tokens: Some(Tokens(10)),
        cost: Some(Micros(10)),
        at: at(0),
    });
    let refusal = one(&state, at(0), 0).unwrap_err();
    assert!(matches!(
        refusal,
        Refusal::BudgetExceeded {
            kind: BudgetKind::Cost,
            ..
        }
    ));
}

/// An image has a price, and no tokens.
#[test]
fn unknown_tokens_leave_rate_limits_debited() {
    let state = alone(
        Some(limits(None, Some(100), None)),
        Some(budget(7, None, Some(1_000))),
    );
    one(&state, at(0), 60).unwrap().settle(&ActualUsage {
        model: &name("large"),
        tokens: None,
        cost: Some(Micros(1_000)),
        at: at(0),
    });
    assert_eq!(
        what(&one(&state, at(0), 50).unwrap_err()),
        LimitKind::Tokens
    );
    assert_eq!(one(&state, at(0), 1).unwrap_err().status(), 402);
}

#[test]
fn changed_budget_total_applies_at_once() {
    let state = alone(None, Some(budget(7, Some(100), None)));
    settle(one(&state, at(0), 1).unwrap(), at(0), 100);
    assert_eq!(one(&state, at(0), 1).unwrap_err().status(), 402);
    let with_cap = |tokens, id, held: &RoutingState| {
        let described = with(None, Some(budget(id, Some(tokens), None)));
        world(vec![described], Vec::new(), Some(held))
    };
    let raised = with_cap(101, 7, &state);
    one(&raised, at(0), 1).unwrap().cancel(at(0));
    let lowered = with_cap(50, 7, &raised);
    assert_eq!(one(&lowered, at(0), 1).unwrap_err().status(), 402);
    // Another budget: nothing of it is spent.
    let other = with_cap(50, 8, &lowered);
    drop(one(&other, at(0), 1).unwrap());
    assert!(one(&state, at(0), 1).is_ok(), "old state, new terms");
}

#[test]
fn each_window_starts_empty_and_settles_its_own_requests() {
    let state = alone(None, Some(budget(7, Some(100), None)));
    let old = one(&state, at(DAY - 1), 1).unwrap();
    settle(one(&state, at(DAY - 1), 1).unwrap(), at(DAY - 1), 100);
    assert_eq!(one(&state, at(DAY - 1), 1).unwrap_err().status(), 402);
    let new = one(&state, at(DAY), 7).unwrap();
    settle(old, at(DAY), 50);
    assert_eq!(grants(&state), (0, 7));
    settle(new, at(DAY), 7);
    // Late by its own time: it came when the window had begun already.
    one(&state, at(DAY - 1), 1).unwrap().cancel(at(DAY));
    assert_eq!(grants(&state), (7, 0));
}

#[test]
fn teams_share_limits_and_keys_and_models_have_own_limits() {
    let team = Team {
        id: TeamId(3),
        name: "t".to_owned(),
        limits: Some(limits(Some(3), None, None)),
        budget: None,
    };
    let member = |id| Principal {
        team: Some(TeamId(3)),
        ..principal(id, &["large", "small"])
    };
    let mut limited = member(2);
    limited.models.push(ModelAllowance {
        model: name("large"),
        limits: Some(limits(Some(1), None, None)),
        budget: None,
    });
    let state = world(vec![member(1), limited], vec![team], None);
    let ask = claim(at(0), 1, 1);
    drop(take(&state, "principal-1", &ask).unwrap());
    // The first of the second's takes its only one of the model, the next goes
    // to the fallback.
    let (caller, mut candidates) = chain(&state, "principal-2", at(0));
    let taken = reserve(&caller, &mut candidates, &ask, state.accounts()).unwrap();
    assert_eq!(candidates.pools().len(), 2);
    assert_eq!(taken.1.requests.unwrap().remaining, 0);
    let (_, mut candidates) = chain(&state, "principal-2", at(0));
    let _second = reserve(&caller, &mut candidates, &ask, state.accounts()).unwrap();
    let left: Vec<_> = candidates
        .pools()
        .iter()
        .map(|pool| pool.model().as_str())
        .collect();
    assert_eq!(left, ["small"]);
    assert!(candidates.is_fallback(0));
    let refusal = take(&state, "principal-1", &ask).unwrap_err();
    let Refusal::RateLimited(limited) = refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(limited.scope, LimitScope::Team);
}

#[test]
fn reservations_of_unused_models_are_released() {
    let mut described = principal(1, &["large", "small"]);
    for model in ["large", "small"] {
        described.models.push(ModelAllowance {
            model: name(model),
            limits: Some(limits(Some(1), None, None)),
            budget: None,
        });
    }
    let state = world(vec![described], Vec::new(), None);
    settle(one(&state, at(0), 1).unwrap(), at(0), 1);
    let (caller, mut candidates) = chain(&state, "principal-1", at(0));
    let (taken, _) = reserve(
        &caller,
        &mut candidates,
        &claim(at(0), 1, 1),
        state.accounts(),
    )
    .unwrap();
    assert_eq!(candidates.pools()[0].model(), &name("small"));
    drop(taken);
    let refusal = one(&state, at(0), 1).unwrap_err();
    assert!(matches!(refusal, Refusal::RateLimited(limited) if limited.scope == LimitScope::Model));
}

#[test]
fn other_candidates_are_released_when_one_responds() {
    let mut described = principal(1, &["large", "small"]);
    described.models.push(ModelAllowance {
        model: name("small"),
        limits: Some(limits(Some(1), None, Some(1))),
        budget: None,
    });
    let state = world(vec![described], Vec::new(), None);
    let ask = claim(at(0), 1, 1);
    let both = || {
        let (caller, mut candidates) = chain(&state, "principal-1", at(0));
        let taken = reserve(&caller, &mut candidates, &ask, state.accounts()).unwrap();
        (taken.0, candidates.pools().len())
    };
    let (mut first, candidates) = both();
    assert_eq!(candidates, 2);
    let (_second, candidates) = both();
    assert_eq!(candidates, 1);
    first.release_other_models(&name("large"), at(0));
    let (_third, candidates) = both();
    assert_eq!(candidates, 2);
}

#[test]
fn refusal_of_the_soonest_candidate_is_reported() {
    let mut described = principal(1, &["large", "small"]);
    let allowance = |model: &str, limits, budget| ModelAllowance {
        model: name(model),
        limits,
        budget,
    };
    described.models = vec![
        allowance("large", None, Some(budget(7, Some(1), None))),
        allowance("small", Some(limits(Some(1), None, None)), None),
    ];
    let state = world(vec![described], Vec::new(), None);
    settle(one(&state, at(0), 1).unwrap(), at(0), 1);
    // The budget of the first is spent; of the second nothing was used.
    drop(one(&state, at(0), 1).unwrap());
    let refusal = one(&state, at(0), 1).unwrap_err();
    assert_eq!(what(&refusal), LimitKind::Requests);
}

#[test]
fn stored_usage_applies_without_a_grant() {
    let state = alone(None, Some(budget(7, Some(100), None)));
    settle(one(&state, at(0), 10).unwrap(), at(0), 10);
    let apply_state = |tokens| {
        state.accounts().apply_limits_state(&LimitsState {
            replicas: 1,
            prices: Vec::new(),
            budgets: vec![BudgetState {
                budget: BudgetId(7),
                window_start: at(0),
                tokens_used: Tokens(tokens),
                cost_used_micros: Micros(0),
            }],
        });
    };
    // What this gateway has used itself is among it.
    apply_state(99);
    drop(one(&state, at(0), 1).unwrap());
    apply_state(100);
    assert_eq!(one(&state, at(0), 1).unwrap_err().status(), 402);
}

#[test]
fn clock_jump_does_not_keep_a_future_window() {
    let state = alone(None, Some(budget(7, Some(100), None)));
    drop(one(&state, at(40 * DAY), 1).unwrap());
    settle(one(&state, at(5), 1).unwrap(), at(5), 100);
    assert_eq!(one(&state, at(6), 1).unwrap_err().status(), 402);
    assert_eq!(grants(&state), (100, 0));
}

#[test]
fn absurd_usage_does_not_reopen_a_budget() {
    let state = alone(
        Some(limits(None, Some(1_000), None)),
        Some(budget(7, Some(u64::MAX), Some(1))),
    );
    let held: Vec<_> = (0..30).map(|_| one(&state, at(0), 0).unwrap()).collect();
    for reservation in held {
        reservation.settle(&ActualUsage {
            model: &name("large"),
            tokens: Some(Tokens(u64::MAX)),
            cost: Some(Micros(u64::MAX)),
            at: at(0),
        });
    }
    assert_eq!(what(&one(&state, at(0), 1).unwrap_err()), LimitKind::Tokens);
    assert_eq!(one(&state, at(0), 0).unwrap_err().status(), 429);
    assert!(
        state.accounts().limits_state().budgets[0]
            .cost_used_micros
            .0
            > 1 << 60
    );
}

fn share(requests: f64, tokens: f64) -> LimitReportReply {
    LimitReportReply {
        replicas: 4,
        allowances: vec![LimitShare {
            subject: Subject::Principal(PrincipalId(1)),
            requests_share: requests,
            tokens_share: tokens,
            concurrency: None,
        }],
        ..LimitReportReply::default()
    }
}

#[test]
fn gateways_have_equal_parts_before_the_first_reply() {
    let state = alone(
        Some(limits(Some(8), None, Some(8))),
        Some(budget(7, Some(100), None)),
    );
    state.accounts().apply_limits_state(&LimitsState {
        replicas: 4,
        prices: Vec::new(),
        budgets: vec![BudgetState {
            budget: BudgetId(7),
            window_start: at(0),
            tokens_used: Tokens(60),
            cost_used_micros: Micros(0),
        }],
    });
    let first = one(&state, at(0), 10).unwrap();
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::TokenBudget
    );
    settle(first, at(0), 10);
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::TokenBudget
    );
    assert_eq!(
        state.accounts().limits_state().budgets[0].tokens_used,
        Tokens(70)
    );
    // Two requests a minute are its part; one was taken.
    let state = alone(Some(limits(Some(8), None, None)), None);
    state.accounts().apply_limits_state(&LimitsState {
        replicas: 4,
        ..LimitsState::default()
    });
    drop(one(&state, at(0), 1).unwrap());
    drop(one(&state, at(0), 1).unwrap());
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::Requests
    );
    state.accounts().apply_shares(&share(0.5, 0.5));
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::Requests
    );
    drop(one(&state, at(15), 1).unwrap());
}

/// How many requests are admitted at once.
fn admitted(state: &RoutingState) -> usize {
    let mut held = Vec::new();
    while let Ok(reservation) = one(state, at(0), 1) {
        held.push(reservation);
        assert!(held.len() < 100);
    }
    held.len()
}

#[test]
fn parts_of_a_concurrency_limit_are_whole_and_at_least_one() {
    // Before the control plane has granted a part: an even one, rounded down.
    for (limit, replicas, expected) in [(3, 2, 1), (1, 2, 1), (8, 2, 4), (9, 4, 2), (7, 1, 7)] {
        let state = alone(Some(limits(None, None, Some(limit))), None);
        state.accounts().apply_limits_state(&LimitsState {
            replicas,
            ..LimitsState::default()
        });
        assert_eq!(admitted(&state), expected, "{limit} at {replicas} gateways");
    }
    let state = alone(Some(limits(None, None, Some(3))), None);
    // A control plane that grants only shares.
    for (requests, expected) in [(0.5, 1), (0.1, 1), (1.0, 3), (2.0 / 3.0, 2)] {
        state.accounts().apply_shares(&share(requests, 0.5));
        assert_eq!(admitted(&state), expected, "{requests}");
    }
    let mut reply = share(0.5, 0.5);
    reply.allowances[0].concurrency = Some(ConcurrencyGrant {
        limit: 3,
        granted: 2,
    });
    state.accounts().apply_shares(&reply);
    assert_eq!(admitted(&state), 2);
    // A changed limit has the same proportion until the next reply.
    let raised = with(Some(limits(None, None, Some(10))), None);
    let raised = world(vec![raised], Vec::new(), Some(&state));
    assert_eq!(admitted(&raised), 6);
}

#[test]
fn reports_have_the_concurrency_until_a_lowered_part_is_known() {
    let state = alone(Some(limits(None, None, Some(8))), None);
    let report = |seconds| {
        let accounts = state.accounts();
        let report = accounts.limit_report("a".to_owned(), "b".to_owned(), at(seconds));
        let count = report.counts.first();
        count.map(|count| (count.requests, count.concurrency.unwrap().held))
    };
    let grant = |granted| {
        let mut reply = share(1.0, 1.0);
        reply.allowances[0].concurrency = Some(ConcurrencyGrant { limit: 8, granted });
        state.accounts().apply_shares(&reply);
    };
    let held: Vec<_> = (0..5).map(|_| one(&state, at(0), 1).unwrap()).collect();
    grant(8);
    assert_eq!(report(0), Some((5, 8)));
    assert!(!state.accounts().take_report_due());
    // More are in flight than the new part admits. Others wait for them.
    grant(2);
    assert!(state.accounts().take_report_due());
    assert_eq!(report(1), Some((0, 5)));
    // Long requests are reported, however long ago they began.
    assert_eq!(report(600), Some((0, 5)));
    drop(held);
    assert_eq!(report(600), None);
    grant(1);
    assert_eq!(report(600), Some((0, 1)));
    assert_eq!(report(600), None);
}

#[test]
fn a_grant_is_taken_on_and_what_others_have_spent_makes_it_a_402() {
    let state = alone(None, Some(budget(7, Some(100), None)));
    settle(one(&state, at(0), 5).unwrap(), at(0), 5);
    let grant = |granted, used_by_others| LimitReportReply {
        replicas: 2,
        budgets: vec![BudgetShare {
            budget: BudgetId(7),
            window_start: at(0),
            share: 0.5,
            tokens: Some(Grant {
                total: 100,
                granted,
                used_by_others,
            }),
            cost_micros: None,
        }],
        ..LimitReportReply::default()
    };
    state.accounts().apply_shares(&grant(10, 85));
    settle(one(&state, at(0), 5).unwrap(), at(0), 5);
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::TokenBudget
    );
    state.accounts().apply_shares(&grant(15, 90));
    assert_eq!(one(&state, at(0), 1).unwrap_err().status(), 402);
    // A raised total adds the share of what was added.
    let described = with(None, Some(budget(7, Some(120), None)));
    let raised = world(vec![described], Vec::new(), Some(&state));
    settle(one(&raised, at(0), 1).unwrap(), at(0), 15);
    assert_eq!(
        what(&one(&raised, at(0), 1).unwrap_err()),
        LimitKind::TokenBudget
    );
    // The window that follows begins with the share, too.
    settle(one(&raised, at(DAY), 1).unwrap(), at(DAY), 60);
    assert_eq!(
        what(&one(&raised, at(DAY), 1).unwrap_err()),
        LimitKind::TokenBudget
    );
}

/// The gateway settles by prices that are no longer, or not yet, those that are
/// charged: what it may still use is what the budget really has left.
#[test]
fn budgets_have_left_what_other_prices_have_not_charged() {
    for charged in [160_i64, 400, 700] {
        let state = alone(None, Some(budget(7, None, Some(1000))));
        let use_cost = |cost: u64| {
            one(&state, at(0), 1).map(|taken| {
                let settlement = taken.settle(&ActualUsage {
                    model: &name("large"),
                    tokens: Some(Tokens(9)),
                    cost: Some(Micros(cost)),
                    at: at(0),
                });
                settlement.budgets().collect::<Vec<_>>()
            })
        };
        let settled = BudgetSettlement {
            budget: BudgetId(7),
            window_start: at(0),
            tokens: Tokens(9),
            cost_micros: Micros(400),
        };
        assert_eq!(use_cost(400), Ok(vec![settled]));
        state.accounts().apply_shares(&LimitReportReply {
            replicas: 1,
            budgets: vec![BudgetShare {
                budget: BudgetId(7),
                window_start: at(0),
                share: 1.0,
                tokens: None,
                cost_micros: Some(Grant {
                    total: 1000,
                    granted: 400 + 1000 - charged.unsigned_abs(),
                    used_by_others: charged - 400,
                }),
            }],
            ..LimitReportReply::default()
        });
        let spent = || state.accounts().limits_state().budgets[0].cost_used_micros;
        assert_eq!(spent(), Micros(charged.unsigned_abs()));
        // What is stored is known: it includes this gateway's usage.
        state.accounts().apply_limits_state(&LimitsState {
            replicas: 1,
            prices: Vec::new(),
            budgets: vec![BudgetState {
                budget: BudgetId(7),
                window_start: at(0),
                tokens_used: Tokens(9),
                cost_used_micros: spent(),
            }],
        });
        assert!(use_cost(999 - charged.unsigned_abs()).is_ok());
        assert_eq!(spent(), Micros(999));
        assert!(use_cost(1).is_ok(), "{charged}");
        let refusal = use_cost(1).unwrap_err();
        assert_eq!(refusal.status(), 402, "{charged}");
    }
}

/// The amounts belong to the window in which they were reserved.
#[test]
fn settlements_name_each_budget_and_its_window() {
    let mut described = with(None, Some(budget(7, Some(100), None)));
    described.allowed_models.push(name("small"));
    let own = |model: &str, id| ModelAllowance {
        model: name(model),
        limits: None,
        budget: Some(budget(id, Some(100), None)),
    };
    described.models = vec![own("large", 8), own("small", 9)];
    let state = world(vec![described], Vec::new(), None);
    let taken = one(&state, at(DAY - 1), 5).unwrap();
    let settlement = taken.settle(&ActualUsage {
        model: &name("large"),
        tokens: Some(Tokens(6)),
        cost: None,
        at: at(DAY),
    });
    let mut settled: Vec<_> = settlement.budgets().collect();
    settled.sort_by_key(|settled| settled.budget);
    let of = |id| BudgetSettlement {
        budget: BudgetId(id),
        window_start: at(0),
        tokens: Tokens(6),
        cost_micros: Micros(0),
    };
    assert_eq!(settled, [of(7), of(8)]);
    // A request from shortly before the window counts in it, as it is reserved.
    let new = one(&state, at(DAY), 5).unwrap();
    let late = one(&state, at(DAY - 1), 5).unwrap();
    for taken in [new, late] {
        let settlement = taken.settle(&ActualUsage {
            model: &name("large"),
            tokens: Some(Tokens(1)),
            cost: None,
            at: at(DAY),
        });
        let starts: Vec<_> = settlement.budgets().map(|of| of.window_start).collect();
        assert_eq!(starts, [at(DAY); 2]);
    }
}

#[test]
fn unreported_counts_are_in_the_next_report() {
    let state = alone(Some(limits(Some(9), None, None)), None);
    let ask = |times| (0..times).for_each(|_| drop(one(&state, at(0), 10)));
    let report = || {
        let accounts = state.accounts();
        accounts.limit_report("a".to_owned(), "b".to_owned(), at(0))
    };
    ask(3);
    let mut untold = report().counts;
    let tokens = untold[0].tokens;
    assert_eq!((untold[0].requests, report().counts[0].requests), (3, 0));
    ask(2);
    let restore_counts =
        |counts: &[LimitUsage]| state.accounts().restore_counts(counts, Duration::ZERO);
    restore_counts(&untold);
    let counts = report().counts;
    assert_eq!((counts[0].requests, counts[0].tokens), (5, tokens / 3 * 5));
    // Counts of long ago have decayed.
    let mut long = 0;
    for _ in 0..100 {
        ask(8);
        let counts = report().counts;
        long = counts[0].requests;
        state
            .accounts()
            .restore_counts(&counts, Duration::from_secs(5));
    }
    assert!((30..=37).contains(&long), "{long}");
    let _all = report();
    // However much that is.
    untold[0].requests = u64::MAX;
    restore_counts(&untold);
    ask(1);
    restore_counts(&untold);
    assert_eq!(report().counts[0].requests, u64::MAX);
    untold[0].subject = Subject::Principal(PrincipalId(999));
    restore_counts(&untold);
    assert_eq!(report().counts[0].requests, 0);
}

#[test]
fn partial_reply_keeps_other_shares() {
    let share = |id: u64| BudgetShare {
        budget: BudgetId(id),
        window_start: at(0),
        share: 0.1,
        tokens: Some(Grant {
            total: 100,
            granted: 7,
            used_by_others: 0,
        }),
        cost_micros: None,
    };
    let said = |budgets: &[u64]| LimitReportReply {
        replicas: 2,
        budgets: budgets.iter().copied().map(share).collect(),
        ..LimitReportReply::default()
    };
    // Of an unused budget only the grant is known.
    let grants = |state: &RoutingState| match one(state, at(0), 7) {
        Ok(first) => {
            settle(first, at(0), 7);
            one(state, at(0), 1).is_err()
        }
        Err(_) => true,
    };
    for (then, kept) in [(said(&[8]), true), (LimitReportReply::default(), true)] {
        let state = alone(None, Some(budget(7, Some(100), None)));
        state.accounts().apply_shares(&said(&[7]));
        state.accounts().apply_partial_shares(&then);
        assert_eq!(grants(&state), kept);
    }
    let state = alone(None, Some(budget(7, Some(100), None)));
    state.accounts().apply_shares(&said(&[7]));
    state.accounts().apply_shares(&said(&[8]));
    assert!(!grants(&state));
}

#[test]
fn partial_reply_keeps_usage_applied_since() {
    let share = |id: u64| BudgetShare {
        budget: BudgetId(id),
        window_start: at(0),
        share: 0.5,
        tokens: Some(Grant {
            total: 100,
            granted: 50,
            used_by_others: 0,
        }),
        cost_micros: None,
    };
    let said = |id: u64| LimitReportReply {
        replicas: 2,
        budgets: vec![share(id)],
        ..LimitReportReply::default()
    };
    let state = alone(None, Some(budget(7, Some(100), None)));
    state.accounts().apply_shares(&said(7));
    settle(one(&state, at(0), 1).unwrap(), at(0), 1);
    state.accounts().apply_limits_state(&LimitsState {
        replicas: 2,
        prices: Vec::new(),
        budgets: vec![BudgetState {
            budget: BudgetId(7),
            window_start: at(0),
            tokens_used: Tokens(101),
            cost_used_micros: Micros(0),
        }],
    });
    assert_eq!(one(&state, at(0), 1).unwrap_err().status(), 402);
    state.accounts().apply_partial_shares(&said(8));
    assert_eq!(one(&state, at(0), 1).unwrap_err().status(), 402);
}

#[test]
fn grant_applies_to_an_unused_budget() {
    let state = alone(None, Some(budget(7, Some(100), None)));
    let grants = |day: i64| BudgetShare {
        budget: BudgetId(7),
        window_start: at(day * DAY),
        share: 0.25,
        tokens: Some(Grant {
            total: 100,
            granted: 8,
            used_by_others: 60,
        }),
        cost_micros: None,
    };
    let apply_shares = |budgets| LimitReportReply {
        replicas: 2,
        budgets,
        ..LimitReportReply::default()
    };
    state
        .accounts()
        .apply_shares(&apply_shares(vec![grants(0)]));
    settle(one(&state, at(0), 1).unwrap(), at(0), 8);
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::TokenBudget
    );
    // Of another window only the share holds.
    let state = alone(None, Some(budget(7, Some(100), None)));
    state
        .accounts()
        .apply_shares(&apply_shares(vec![grants(-1)]));
    settle(one(&state, at(0), 1).unwrap(), at(0), 24);
    settle(one(&state, at(0), 1).unwrap(), at(0), 1);
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::TokenBudget
    );
}

#[test]
fn report_counts_refused_requests_and_skips_removed_subjects() {
    let state = alone(Some(limits(Some(1), None, None)), None);
    for _ in 0..3 {
        drop(one(&state, at(0), 10));
    }
    let report = |state: &RoutingState, now| {
        let report = state
            .accounts()
            .limit_report("a".to_owned(), "b".to_owned(), now);
        report
            .counts
            .iter()
            .map(|count| (count.requests, count.tokens))
            .collect::<Vec<_>>()
    };
    assert_eq!(report(&state, at(1)), [(3, 30)]);
    assert_eq!(report(&state, at(2)), [(0, 0)]);
    assert_eq!(report(&state, at(62)), []);
    let gone = world(vec![principal(1, &["large"])], Vec::new(), Some(&state));
    drop(one(&state, at(70), 1));
    assert_eq!(
        report(&gone, at(70)).len(),
        1,
        "the old state are still in use"
    );
    drop(state);
    assert_eq!(report(&gone, at(71)), []);
}

/// One step of a history.
#[derive(Debug, Clone)]
enum Step {
    Begin {
        principal: usize,
        prompt: u64,
        most: u64,
    },
    Settle {
        which: usize,
        tokens: u64,
    },
    Drop {
        which: usize,
    },
    Cancel {
        which: usize,
    },
    Pass {
        millis: i64,
    },
    Publish {
        cap: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_usize..2, 0_u64..40, 0_u64..40)
            .prop_map(|(principal, prompt, most)| Step::Begin { principal, prompt, most }),
        4 => (any::<usize>(), 0_u64..120).prop_map(|(which, tokens)| Step::Settle { which, tokens }),
        1 => any::<usize>().prop_map(|which| Step::Drop { which }),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        2 => (0_i64..30_000).prop_map(|millis| Step::Pass { millis }),
        1 => (0_u64..2_000).prop_map(|cap| Step::Publish { cap }),
    ]
}

fn two(cap: u64, held: Option<&RoutingState>) -> RoutingState {
    let member = |id: u64| Principal {
        team: Some(TeamId(3)),
        limits: Some(limits(Some(60), Some(1_000), Some(5))),
        budget: Some(budget(id, Some(300 * id), None)),
        ..principal(id, &["large"])
    };
    let team = Team {
        id: TeamId(3),
        name: "t".to_owned(),
        limits: None,
        budget: Some(budget(9, Some(cap), None)),
    };
    world(vec![member(1), member(2)], vec![team], held)
}

proptest! {
    /// In any order of events: settled is the sum of what was used, reserved is
    /// what is in flight, nothing stays reserved when all requests have ended,
    /// and nothing is admitted beyond the total.
    #[test]
    fn reserved_and_settled_amounts_balance(steps in prop::collection::vec(step(), 1..200)) {
        let (mut cap, mut now) = (1_000_u64, at(0));
        let mut state = two(cap, None);
        let mut open: Vec<(usize, u64, Reservation)> = Vec::new();
        let mut settled = [0_u64; 3];
        for step in steps {
            let budget_hold = |open: &[(usize, u64, Reservation)], of: usize| -> u64 {
                let mine = open.iter().filter(|(who, ..)| of == 2 || *who == of);
                mine.map(|(_, need, _)| need).sum()
            };
            match step {
                Step::Begin { principal, prompt, most } => {
                    let room = |of: usize, total: u64| settled[of] + budget_hold(&open, of) < total;
                    let fits = room(principal, 300 * (principal as u64 + 1)) && room(2, cap);
                    let ask = claim(now, prompt, most);
                    let under_way = open.iter().filter(|(who, ..)| *who == principal).count();
                    match take(&state, &format!("principal-{}", principal + 1), &ask) {
                        Ok(reservation) => {
                            prop_assert!(fits && under_way < 5);
                            open.push((principal, prompt + most, reservation));
                        }
                        Err(refusal) if refusal.status() == 402 => {
                            let whole = settled[principal] >= 300 * (principal as u64 + 1) || settled[2] >= cap;
                            prop_assert!(whole, "{refusal}");
                        }
                        Err(refusal) => match what(&refusal) {
                            LimitKind::Concurrency => prop_assert!(under_way >= 5),
                            LimitKind::TokenBudget => prop_assert!(!fits),
                            _ => {}
                        },
                    }
                }
                Step::Settle { which, tokens } if !open.is_empty() => {
                    let (who, _, reservation) = open.swap_remove(which % open.len());
                    settled[who] += tokens;
                    settled[2] += tokens;
                    settle(reservation, now, tokens);
                }
                Step::Drop { which } if !open.is_empty() => {
                    drop(open.swap_remove(which % open.len()));
                }
                Step::Cancel { which } if !open.is_empty() => {
                    open.swap_remove(which % open.len()).2.cancel(now);
                }
                Step::Pass { millis } => now.0 += millis * 1_000,
                Step::Publish { cap: other } => {
                    cap = other;
                    state = two(cap, Some(&state));
                }
                _ => {}
            }
            let report = state.accounts().limit_report("a".to_owned(), "b".to_owned(), now);
            for used in report.budgets {
                let of = usize::try_from(used.budget.0.min(3) - 1).unwrap();
                prop_assert_eq!(used.tokens.0, settled[of]);
                prop_assert_eq!(used.tokens_reserved.0, budget_hold(&open, of));
            }
        }
        open.clear();
        let report = state.accounts().limit_report("a".to_owned(), "b".to_owned(), now);
        prop_assert!(report.budgets.iter().all(|used| used.tokens_reserved.0 == 0));
        // Places are free again.
        let later = Timestamp(now.0 + 600_000_000);
        let state = two(u64::MAX, Some(&state));
        for (principal, settled) in (1_u64..).zip(&settled[..2]) {
            if *settled < 300 * principal {
                let who = format!("principal-{principal}");
                let all: Result<Vec<_>, _> = (0..5).map(|_| take(&state, &who, &claim(later, 0, 0))).collect();
                prop_assert!(all.is_ok());
            }
        }
    }
}

/// Threads that race for the same accounts: the sum is exact, and no more get in
/// than there is room for.
#[test]
fn concurrent_reservations_lose_nothing() {
    const THREADS: u64 = 4;
    const EACH: u64 = 5_000;
    let state = alone(
        Some(limits(None, None, Some(3))),
        Some(budget(7, Some(1 << 40), None)),
    );
    let sum: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let state = &state;
                scope.spawn(move || {
                    let mut sum = 0;
                    for number in 0..EACH {
                        let Ok(taken) = one(state, at(0), number % 50) else {
                            continue;
                        };
                        let tokens = (number * 7 + thread) % 90;
                        match number % 3 {
                            0 => taken.cancel(at(0)),
                            1 => drop(taken),
                            _ => {
                                sum += tokens;
                                settle(taken, at(0), tokens);
                            }
                        }
                    }
                    sum
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(grants(&state), (sum, 0));
    let held: Vec<_> = (0..3).map(|_| one(&state, at(0), 1).unwrap()).collect();
    assert_eq!(
        what(&one(&state, at(0), 1).unwrap_err()),
        LimitKind::Concurrency
    );
    drop(held);
}

/// A thread that panics in the middle of a request keeps nothing.
#[test]
fn panic_releases_the_reservation() {
    let state = alone(
        Some(limits(None, None, Some(1))),
        Some(budget(7, Some(100), None)),
    );
    let outcome = thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let _taken = one(&state, at(0), 50).unwrap();
            panic!("on purpose");
        });
        panics.join()
    });
    assert!(outcome.is_err());
    assert_eq!(grants(&state), (0, 0));
    drop(one(&state, at(0), 50).unwrap());
}
