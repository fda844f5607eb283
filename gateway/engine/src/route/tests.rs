use std::collections::BTreeSet;

use fastllm_contract::{PrincipalId, Rule, SplitBy, Timestamp, Tokens};
use http::HeaderMap;
use proptest::prelude::*;

use super::{Chain, Deprioritized, Explanation, ModelSkipped};
use super::{granted_models, resolve, route};
use crate::fixture::{
    ask, key, model, name, principal, routing_state, snapshot, targets, virtual_model, with_virtual,
};
use crate::virtual_model::{RouteQuery, RuleSkipped};
use crate::{Caller, Refusal, RoutingState, identify};

const NAMES: [&str; 6] = ["a", "b", "c", "A", "a/b", "a "];

fn caller(state: &RoutingState) -> Caller {
    identify(state, Some(b"sk"), Timestamp(0)).unwrap()
}

/// Rules that always hold, with these targets.
fn rules(all: &[&[(&str, u32)]]) -> Vec<Rule> {
    all.iter()
        .map(|given| Rule {
            targets: targets(given),
            ..Rule::default()
        })
        .collect()
}

/// Models with a backend each, one virtual model `v`, and a fallback.
struct World<'a> {
    models: &'a [&'a str],
    granted: &'a [&'a str],
    rules: Vec<Rule>,
    defaults: &'a [(&'a str, u32)],
    fallback: Option<&'a str>,
}

impl World<'_> {
    fn state(&self) -> RoutingState {
        let models = self.models.iter().zip(1..);
        let models = models.map(|(name, id)| model(name, &[id])).collect();
        let plain = snapshot(models, vec![principal(1, self.granted)], &[key("sk", 1)]);
        let stands = virtual_model("v", self.rules.clone(), self.defaults);
        let mut whole = with_virtual(plain, vec![stands]);
        whole.fallback_model = self.fallback.map(name);
        routing_state(&whole)
    }
}

impl Default for World<'_> {
    fn default() -> Self {
        Self {
            models: &["a", "b", "c"],
            granted: &["a", "b", "c"],
            rules: Vec::new(),
            defaults: &[],
            fallback: None,
        }
    }
}

fn names(chain: &Chain) -> Vec<&str> {
    chain
        .pools()
        .iter()
        .map(|pool| pool.model().as_str())
        .collect()
}

fn ask_for(state: &RoutingState, requested: &str, ask: &RouteQuery<'_>) -> Result<Chain, Refusal> {
    route(state, &caller(state), requested, ask, None)
}

fn routed(state: &RoutingState, requested: &str) -> Result<Vec<String>, Refusal> {
    let headers = HeaderMap::new();
    let chain = ask_for(state, requested, &ask(&headers))?;
    Ok(names(&chain).into_iter().map(str::to_owned).collect())
}

#[test]
fn a_name_nobody_serves_is_404_whatever_is_granted_and_falls_back() {
    let world = World {
        models: &["a"],
        granted: &["a", "b"],
        fallback: Some("a"),
        ..World::default()
    };
    let state = world.state();
    assert_eq!(resolve(&state, "b").unwrap_err(), Refusal::ModelNotFound);
    assert_eq!(routed(&state, "b").unwrap_err(), Refusal::ModelNotFound);
}

#[test]
fn a_model_without_a_grant_is_403() {
    let world = World {
        granted: &["b"],
        rules: rules(&[&[("a", 1)]]),
        defaults: &[("c", 1)],
        ..World::default()
    };
    let state = world.state();
    assert_eq!(routed(&state, "a").unwrap_err(), Refusal::ModelAccessDenied);
    assert_eq!(routed(&state, "v").unwrap_err(), Refusal::ModelAccessDenied);
    assert_eq!(granted_models(&state, &caller(&state)), ["b"]);
}

#[test]
fn a_virtual_model_of_nothing_is_404_and_its_fallback_serves_it() {
    let mut world = World {
        rules: rules(&[&[]]),
        defaults: &[("gone", 1)],
        ..World::default()
    };
    assert_eq!(
        routed(&world.state(), "v").unwrap_err(),
        Refusal::ModelNotFound
    );
    world.fallback = Some("gone");
    assert_eq!(
        routed(&world.state(), "v").unwrap_err(),
        Refusal::ModelNotFound
    );
    world.fallback = Some("b");
    assert_eq!(routed(&world.state(), "v").unwrap(), ["b"]);
}

#[test]
fn model_without_backends_is_known_but_unavailable() {
    let mut snapshot = snapshot(
        vec![model("a", &[1]), model("empty", &[])],
        vec![principal(1, &["a", "empty"])],
        &[key("sk", 1)],
    );
    let plain = routing_state(&snapshot);
    assert_eq!(
        routed(&plain, "empty").unwrap_err(),
        Refusal::UpstreamUnavailable
    );
    snapshot.fallback_model = Some(name("a"));
    let snapshot = with_virtual(
        snapshot,
        vec![virtual_model(
            "v",
            rules(&[&[("empty", 1)], &[("a", 1)]]),
            &[],
        )],
    );
    let state = routing_state(&snapshot);
    assert_eq!(routed(&state, "empty").unwrap(), ["a"]);
    assert_eq!(routed(&state, "v").unwrap(), ["a"]);
}

#[test]
fn rule_without_usable_target_falls_through() {
    let world = World {
        granted: &["b", "c"],
        rules: rules(&[&[("gone", 1)], &[("a", 1)], &[("c", 1), ("a", 1)]]),
        defaults: &[("b", 1)],
        ..World::default()
    };
    let state = world.state();
    let headers = HeaderMap::new();
    let mut explanation = Explanation::default();
    let caller = caller(&state);
    let chain = route(&state, &caller, "v", &ask(&headers), Some(&mut explanation)).unwrap();
    assert_eq!(names(&chain), ["c"]);
    let expected = Explanation {
        virtual_model: true,
        matched_rule: Some(2),
        skipped_rules: vec![
            (0, RuleSkipped::NoUsableTarget),
            (1, RuleSkipped::NoUsableTarget),
        ],
        skipped_models: vec![
            (name("gone"), ModelSkipped::NotServed),
            (name("a"), ModelSkipped::NotGranted),
            (name("a"), ModelSkipped::NotGranted),
        ],
        ..Explanation::default()
    };
    assert_eq!(explanation, expected);
}

#[test]
fn fallback_is_last_unique_and_requires_permission() {
    let mut world = World {
        defaults: &[("a", 1), ("b", 0)],
        fallback: Some("c"),
        ..World::default()
    };
    let full = world.state();
    assert_eq!(routed(&full, "v").unwrap(), ["a", "b", "c"]);
    assert_eq!(routed(&full, "b").unwrap(), ["b", "c"]);
    assert_eq!(routed(&full, "c").unwrap(), ["c"]);
    let headers = HeaderMap::new();
    let chain = ask_for(&full, "v", &ask(&headers)).unwrap();
    assert_eq!(
        [0, 1, 2].map(|index| chain.is_fallback(index)),
        [false, false, true]
    );
    let chain = ask_for(&full, "c", &ask(&headers)).unwrap();
    assert!(!chain.is_fallback(0));

    world.granted = &["a"];
    assert_eq!(routed(&world.state(), "v").unwrap(), ["a"]);
    // Permission is checked for the concrete model, also for the fallback.
    world.granted = &["c"];
    assert_eq!(routed(&world.state(), "v").unwrap(), ["c"]);
}

#[test]
fn the_owner_of_a_stored_object_is_tried_first_within_the_chain() {
    let world = World {
        defaults: &[("a", 1), ("b", 0)],
        fallback: Some("c"),
        ..World::default()
    };
    let state = world.state();
    let headers = HeaderMap::new();
    for (object, owner) in [(1, "a"), (2, "b"), (3, "c")] {
        state.pool(owner).unwrap().record_owner(0, object);
    }
    let chain = |requested: &str, stored: &[u64]| {
        let mut chain = ask_for(&state, requested, &ask(&headers)).unwrap();
        chain.prefer_owner(stored);
        chain
    };
    assert_eq!(names(&chain("v", &[])), ["a", "b", "c"]);
    assert_eq!(names(&chain("v", &[9])), ["a", "b", "c"]);
    assert_eq!(names(&chain("v", &[1])), ["a", "b", "c"]);
    assert_eq!(names(&chain("v", &[2])), ["b", "a", "c"]);
    assert!(chain("v", &[2]).is_fallback(2));
    let of_fallback = chain("v", &[9, 3]);
    assert_eq!(names(&of_fallback), ["c", "a", "b"]);
    assert!(!of_fallback.is_fallback(2));
    // Nothing is added to the chain of another name.
    assert_eq!(names(&chain("b", &[1])), ["b", "c"]);
}

#[test]
fn unavailable_and_too_small_models_move_down() {
    let mut small = model("small", &[1]);
    small.context_length = Some(Tokens(100));
    let mut large = model("large", &[3]);
    large.context_length = Some(Tokens(1000));
    let plain = snapshot(
        vec![small, model("down", &[2]), large],
        vec![principal(1, &["small", "down", "large"])],
        &[key("sk", 1)],
    );
    let stands = virtual_model("v", Vec::new(), &[("small", 1), ("down", 0), ("large", 0)]);
    let state = routing_state(&with_virtual(plain, vec![stands]));
    for _ in 0..2 {
        state.pool("down").unwrap().backends()[0]
            .state()
            .record_probe(false);
    }
    let headers = HeaderMap::new();
    let mut query = ask(&headers);
    query.prompt_tokens = 60;
    query.max_tokens = Some(40);
    assert_eq!(
        names(&ask_for(&state, "v", &query).unwrap()),
        ["small", "large", "down"]
    );
    query.max_tokens = Some(41);
    let mut why = Explanation::default();
    let caller = caller(&state);
    let chain = route(&state, &caller, "v", &query, Some(&mut why)).unwrap();
    assert_eq!(names(&chain), ["large", "down", "small"]);
    let demoted = [
        (name("small"), Deprioritized::ContextWindow),
        (name("down"), Deprioritized::Unavailable),
    ];
    assert_eq!(why.demoted, demoted);
    // The only candidate stays, whatever its context window.
    query.prompt_tokens = u64::MAX;
    assert_eq!(names(&ask_for(&state, "small", &query).unwrap()), ["small"]);
}

#[test]
fn fallbacks_of_a_model_follow_it_within_the_grants() {
    let state = |granted: &[&str]| {
        let mut small = model("small", &[1]);
        small.context_length = Some(Tokens(100));
        small.failover.fallbacks = vec![name("other"), name("gone"), name("small")];
        small.failover.context_fallbacks = vec![name("large")];
        let models = vec![small, model("other", &[2]), model("large", &[3])];
        let principals = vec![principal(1, granted)];
        routing_state(&snapshot(models, principals, &[key("sk", 1)]))
    };
    let headers = HeaderMap::new();
    let mut query = ask(&headers);
    let all = state(&["small", "other", "large"]);
    assert_eq!(
        names(&ask_for(&all, "small", &query).unwrap()),
        ["small", "other"]
    );
    assert_eq!(names(&ask_for(&all, "other", &query).unwrap()), ["other"]);
    let some = state(&["small", "large"]);
    assert_eq!(names(&ask_for(&some, "small", &query).unwrap()), ["small"]);
    // Fallbacks give no access to a model that is not granted.
    let none = state(&["other", "large"]);
    assert_eq!(
        ask_for(&none, "small", &query).unwrap_err(),
        Refusal::ModelAccessDenied
    );
    query.prompt_tokens = 101;
    assert_eq!(
        names(&ask_for(&all, "small", &query).unwrap()),
        ["large", "other", "small"]
    );
    query.prompt_tokens = 0;
    for _ in 0..2 {
        all.pool("small").unwrap().backends()[0]
            .state()
            .record_probe(false);
    }
    assert_eq!(
        names(&ask_for(&all, "small", &query).unwrap()),
        ["other", "small"]
    );
}

#[test]
fn split_follows_weights_and_is_sticky() {
    let stands = |split_by| {
        let mut stands = virtual_model("v", Vec::new(), &[("a", 75), ("b", 25), ("gone", 900)]);
        stands.split_by = split_by;
        stands
    };
    let world = |split_by| {
        let models = vec![model("a", &[1]), model("b", &[2])];
        let principals = (1..=200).map(|id| principal(id, &["a", "b"])).collect();
        let secrets: Vec<String> = (1..=200).map(|id| format!("sk-{id}")).collect();
        let keys: Vec<_> = secrets
            .iter()
            .zip(1..)
            .map(|(sk, id)| key(sk, id))
            .collect();
        routing_state(&with_virtual(
            snapshot(models, principals, &keys),
            vec![stands(split_by)],
        ))
    };
    let headers = HeaderMap::new();
    let head = |state: &RoutingState, who: u64, prompt: u64| {
        let who = identify(state, Some(format!("sk-{who}").as_bytes()), Timestamp(0)).unwrap();
        let query = RouteQuery {
            prompt_hash: prompt,
            ..ask(&headers)
        };
        let chain = route(state, &who, "v", &query, None).unwrap();
        assert_eq!(chain.pools().len(), 2);
        chain.pools()[0].model().as_str() == "a"
    };
    let by_prompt = world(SplitBy::Prompt);
    let heads = (0..1000)
        .filter(|prompt| head(&by_prompt, 1, *prompt))
        .count();
    assert!((700..800).contains(&heads), "{heads}");
    assert!((0..100).all(|prompt| head(&by_prompt, 1, prompt) == head(&by_prompt, 2, prompt)));

    let by_caller = world(SplitBy::Caller);
    let heads = (1..=200).filter(|who| head(&by_caller, *who, 0)).count();
    assert!((125..175).contains(&heads), "{heads}");
    assert!((1..=200).all(|who| head(&by_caller, who, 1) == head(&by_caller, who, 2)));
}

#[test]
fn busy_condition_considers_healthy_targets_of_the_rule() {
    let mut rules = rules(&[&[("a", 1)]]);
    rules[0].max_inflight_per_backend = Some(2);
    let world = World {
        rules,
        defaults: &[("b", 1)],
        ..World::default()
    };
    let state = world.state();
    let backend = state.pool("a").unwrap().backends()[0].state();
    assert_eq!(routed(&state, "v").unwrap(), ["a"]);
    let first = backend.acquire();
    let second = backend.acquire();
    assert_eq!(routed(&state, "v").unwrap(), ["b"]);
    drop(first);
    assert_eq!(routed(&state, "v").unwrap(), ["a"]);
    backend.record_probe(false);
    backend.record_probe(false);
    assert_eq!(routed(&state, "v").unwrap(), ["b"]);
    drop(second);
}

#[test]
fn virtual_models_are_listed_if_a_target_is_usable() {
    let world = World {
        granted: &["b"],
        rules: rules(&[&[("a", 1)], &[("b", 1)]]),
        ..World::default()
    };
    let state = world.state();
    assert_eq!(granted_models(&state, &caller(&state)), ["b", "v"]);
    let world = World {
        granted: &["b"],
        defaults: &[("gone", 1), ("a", 1)],
        fallback: Some("b"),
        ..World::default()
    };
    let state = world.state();
    assert_eq!(granted_models(&state, &caller(&state)), ["b"]);
}

#[test]
fn refused_virtual_model_is_recorded_under_a_concrete_model() {
    let world = World {
        rules: rules(&[&[("gone", 1)], &[("c", 1)]]),
        granted: &[],
        fallback: Some("a"),
        ..World::default()
    };
    let state = world.state();
    let found = resolve(&state, "v").unwrap();
    assert_eq!((found.name().as_str(), found.model().as_str()), ("v", "c"));
    let found = resolve(&state, "a").unwrap();
    assert_eq!((found.name().as_str(), found.model().as_str()), ("a", "a"));
}

fn subset() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(NAMES.as_slice(), 0..=NAMES.len())
}

fn some_targets() -> impl Strategy<Value = Vec<(&'static str, u32)>> {
    let target = (proptest::sample::select(NAMES.as_slice()), 0_u32..4);
    proptest::collection::vec(target, 0..5)
}

fn some_rule() -> impl Strategy<Value = Rule> {
    let who = proptest::collection::vec((1_u64..3).prop_map(PrincipalId), 0..2);
    let busy = proptest::option::of(0_u32..3);
    let stream = proptest::option::of(any::<bool>());
    (some_targets(), who, busy, stream).prop_map(|(given, principals, busy, stream)| {
        let mut rule = Rule {
            targets: targets(&given),
            max_inflight_per_backend: busy,
            ..Rule::default()
        };
        rule.caller.principals = principals;
        rule.shape.stream = stream;
        rule
    })
}

proptest! {
    #[test]
    fn a_chain_ends_repeats_nothing_and_never_widens_reach(
        models in subset(),
        granted in subset(),
        rules in proptest::collection::vec(some_rule(), 0..4),
        defaults in some_targets(),
        fallback in proptest::option::of(proptest::sample::select(NAMES.as_slice())),
        requested in proptest::sample::select(["a", "b", "A", "v", "w"].as_slice()),
        prompt in any::<u64>(),
        stream in any::<bool>(),
    ) {
        let world = World {
            models: &models,
            granted: &granted,
            rules,
            defaults: &defaults,
            fallback,
        };
        let state = world.state();
        let headers = HeaderMap::new();
        let query = RouteQuery { stream, prompt_hash: prompt, ..ask(&headers) };
        let outcome = ask_for(&state, requested, &query);
        match &outcome {
            Ok(chain) => {
                prop_assert!(!chain.pools().is_empty());
                let set: BTreeSet<_> = names(chain).into_iter().collect();
                prop_assert_eq!(set.len(), chain.pools().len());
                for name in names(chain) {
                    prop_assert!(granted.contains(&name) && models.contains(&name));
                }
                prop_assert!(requested == "v" || models.contains(&requested));
            }
            Err(Refusal::ModelNotFound) => prop_assert!(!models.contains(&requested)),
            Err(refusal) => prop_assert_eq!(refusal, &Refusal::ModelAccessDenied),
        }
        // The same query has the same result, with or without an explanation.
        let mut why = Explanation::default();
        let again = route(&state, &caller(&state), requested, &query, Some(&mut why));
        let flat = |outcome: Result<Chain, Refusal>| {
            outcome.map(|chain| names(&chain).iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        prop_assert_eq!(flat(outcome), flat(again));

        let caller = caller(&state);
        let listed: BTreeSet<_> = granted_models(&state, &caller).into_iter().collect();
        let mut expected: BTreeSet<_> =
            models.iter().copied().filter(|name| granted.contains(name)).collect();
        let reach = expected.clone();
        let mut behind = world.rules.iter().flat_map(|rule| &rule.targets);
        if behind.any(|target| reach.contains(target.model.as_str()))
            || defaults.iter().any(|(name, _)| reach.contains(name))
        {
            expected.insert("v");
        }
        prop_assert_eq!(listed, expected);
    }
}
