use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fastllm_contract::{Backend, Model, Principal, Secret, Timestamp};
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::{
    CAPTURES, CacheKey, CacheKeyBuilder, CacheLimits, CacheScope, CacheUsage, LARGEST,
    ModelCaching, ResponseCache,
};
use crate::caller::Caller;
use crate::fixture::{key, model, principal, routing_state, snapshot};
use crate::identify::identify;
use crate::pool::Tuning;
use crate::state::RoutingState;

const AT: Timestamp = Timestamp(1_767_225_600_000_000);

fn after(duration: Duration) -> Timestamp {
    Timestamp(AT.0 + i64::try_from(duration.as_micros()).unwrap())
}

fn kept_model(name: &str, backends: &[u64]) -> Model {
    Model {
        cache_ttl_seconds: Some(60),
        ..model(name, backends)
    }
}

fn caching() -> ModelCaching {
    ModelCaching::of(&kept_model("m", &[1])).unwrap()
}

fn numbered(number: u64) -> CacheKey {
    CacheKeyBuilder::new(&caching(), "/e", &CacheScope::Anonymous)
        .finish([number.to_be_bytes().as_slice()])
}

fn cache(entries: u64, bytes: u64) -> ResponseCache<u64> {
    ResponseCache::new(CacheLimits { entries, bytes }).unwrap()
}

/// Keeps a body under a number; whether it was.
fn keep(cache: &ResponseCache<u64>, number: u64, body: &[u8]) -> bool {
    let length = Some(body.len() as u64);
    let Some(mut capture) = cache.begin_capture(numbered(number), &caching(), length) else {
        return false;
    };
    let pushed = body.chunks(1000).try_for_each(|part| capture.push(part));
    pushed.is_some() && cache.insert(capture, HeaderMap::new(), number, AT)
}

/// Who presents a key.
fn caller(principals: Vec<Principal>, secret: &str) -> Caller {
    let snapshot = snapshot(Vec::new(), principals, &[key("one", 1), key("two", 2)]);
    identify(&routing_state(&snapshot), Some(secret.as_bytes()), AT).unwrap()
}

fn both() -> Vec<Principal> {
    vec![principal(1, &["m"]), principal(2, &["m"])]
}

#[test]
fn cached_response_is_returned_unchanged_until_it_expires() {
    let cache = cache(10, 1 << 20);
    let caching = caching();
    let mut capture = cache.begin_capture(numbered(1), &caching, None).unwrap();
    for part in [b"{\"a\"".as_slice(), b"", b":1}"] {
        capture.push(part).unwrap();
    }
    let mut fields = HeaderMap::new();
    fields.append("content-type", HeaderValue::from_static("a/b"));
    assert_eq!(capture.body(), b"{\"a\":1}");
    assert!(cache.insert(capture, fields.clone(), 7, AT));

    let entry = cache.get(&numbered(1), AT).unwrap();
    assert_eq!(
        (entry.body().as_ref(), entry.attachment()),
        (b"{\"a\":1}".as_slice(), &7)
    );
    assert_eq!(entry.headers(), &fields);
    assert!(cache.get(&numbered(2), AT).is_none());

    let last = Timestamp(after(caching.ttl()).0 - 1);
    assert!(cache.get(&numbered(1), last).is_some());
    assert!(cache.get(&numbered(1), after(caching.ttl())).is_none());
}

#[test]
fn later_response_replaces_earlier_one() {
    let cache = cache(10, 1 << 20);
    assert!(keep(&cache, 1, b"earlier, and longer"));
    let before = cache.usage();
    assert!(keep(&cache, 1, b"later"));
    assert_eq!(cache.get(&numbered(1), AT).unwrap().body(), "later");
    let now = cache.usage();
    assert_eq!((before.entries, now.entries), (1, 1));
    assert_eq!(before.bytes - now.bytes, 14);
}

#[test]
fn least_recently_used_response_is_evicted() {
    let cache = cache(3, 1 << 20);
    for number in 1..=3 {
        assert!(keep(&cache, number, b"x"));
    }
    assert!(cache.get(&numbered(1), AT).is_some());
    assert!(keep(&cache, 4, b"x"));
    let left = |number| cache.get(&numbered(number), AT).is_some();
    assert_eq!([1, 2, 3, 4].map(left), [true, false, true, true]);
}

#[test]
fn too_large_responses_are_not_cached() {
    let cache = cache(10, 64 << 20);
    let largest = LARGEST as u64;
    assert!(
        cache
            .begin_capture(numbered(1), &caching(), Some(largest + 1))
            .is_none()
    );
    assert!(
        cache
            .begin_capture(numbered(1), &caching(), Some(u64::MAX))
            .is_none()
    );
    // One that does not say how large it is.
    let mut capture = cache.begin_capture(numbered(1), &caching(), None).unwrap();
    let part = vec![b'x'; LARGEST / 4];
    let taken = (0..5).take_while(|_| capture.push(&part).is_some()).count();
    assert_eq!((taken, capture.body().len()), (4, LARGEST));
    assert!(capture.body.capacity() <= LARGEST);
    // Nothing is left for what is kept beside a body.
    assert!(!cache.insert(capture, HeaderMap::new(), 1, AT));
    assert_eq!(cache.usage(), CacheUsage::default());
    // Nor where all of the cache is smaller.
    let small = ResponseCache::new(CacheLimits {
        entries: 4,
        bytes: 2000,
    })
    .unwrap();
    assert!(keep(&small, 1, &[b'x'; 4000]));
    assert!(small.get(&numbered(1), AT).is_none());
    assert_eq!(small.usage(), CacheUsage::default());
}

#[test]
fn captures_share_one_memory_limit() {
    let cache = cache(10, 64 << 20);
    let begin = |number| cache.begin_capture(numbered(number), &caching(), Some(LARGEST as u64));
    let all: Vec<_> = (0..).map_while(begin).collect();
    assert_eq!(all.len() as u64, CAPTURES / LARGEST as u64);
    assert!(
        cache
            .begin_capture(numbered(1), &caching(), Some(1))
            .is_none()
    );
    drop(all);
    // A response of unknown length is counted, too.
    let mut others: Vec<_> = (0..CAPTURES / LARGEST as u64 - 1)
        .map_while(begin)
        .collect();
    let mut capture = cache.begin_capture(numbered(1), &caching(), None).unwrap();
    others.push(
        cache
            .begin_capture(numbered(2), &caching(), Some(LARGEST as u64 / 2))
            .unwrap(),
    );
    assert!(capture.push(&vec![b'x'; LARGEST * 3 / 4]).is_none());
    drop((others, capture));
    assert!(keep(&cache, 3, b"x"));
    assert_eq!(
        cache.captures.load(std::sync::atomic::Ordering::Relaxed),
        CAPTURES
    );
}

#[test]
fn zero_limits_disable_the_cache() {
    for (entries, bytes) in [(0, 1 << 20), (10, 0), (0, 0)] {
        assert!(ResponseCache::<()>::new(CacheLimits { entries, bytes }).is_none());
    }
    let most = CacheLimits {
        entries: u64::MAX,
        bytes: u64::MAX,
    };
    assert!(ResponseCache::<()>::new(most).is_some());
}

#[test]
fn every_part_of_a_request_changes_the_key() {
    let make = |endpoint: &str, scope: &CacheScope, fields: &[(&str, &str)], body: &[&str]| {
        let mut maker = CacheKeyBuilder::new(&caching(), endpoint, scope);
        for (name, value) in fields {
            maker.header(name, value.as_bytes());
        }
        maker.finish(body.iter().map(|piece| piece.as_bytes()))
    };
    let [one, two] = ["one", "two"].map(|secret| caller(both(), secret));
    let scope = |caller, shared| CacheScope::of(caller, shared);
    let first = scope(&one, false);
    let keys = [
        make("/e", &first, &[], &["body"]),
        make("/f", &first, &[], &["body"]),
        make("/e", &first, &[], &["bod"]),
        make("/e", &first, &[], &["body", " "]),
        make("/e", &first, &[("a", "b")], &["body"]),
        make("/e", &first, &[("a", "c")], &["body"]),
        make("/e", &first, &[("a", "b"), ("a", "b")], &["body"]),
        // One part's end is not the next one's beginning.
        make("/e", &first, &[("ab", "")], &["body"]),
        make("/e", &first, &[("", "ab")], &["body"]),
        make("/e", &first, &[], &["h", "body"]),
        make("/", &first, &[], &["ebody"]),
        make("/e", &scope(&two, false), &[], &["body"]),
        make("/e", &scope(&one, true), &[], &["body"]),
        make("/e", &scope(&Caller::Anonymous, false), &[], &["body"]),
    ];
    let with_query = |pair: &str| {
        let mut maker = CacheKeyBuilder::new(&caching(), "/e", &first);
        maker.query_parameter(pair);
        maker.finish([b"body".as_slice()])
    };
    let queries = [with_query("a=b"), with_query("a=c")];
    let all: HashSet<_> = keys.iter().chain(&queries).collect();
    assert_eq!(all.len(), keys.len() + queries.len());

    // What does not make a difference.
    assert_eq!(keys[0], make("/e", &first, &[], &["bo", "", "dy"]));
    assert_eq!(keys[12], make("/e", &scope(&two, true), &[], &["body"]));
    assert_eq!(
        keys[13],
        make("/e", &scope(&Caller::Anonymous, true), &[], &["body"])
    );
    let again = scope(&caller(both(), "one"), false);
    assert_eq!(keys[0], make("/e", &again, &[], &["body"]));
}

#[test]
fn principals_with_a_reused_id_have_different_keys() {
    let key = |scope: &CacheScope| {
        CacheKeyBuilder::new(&caching(), "/e", scope).finish([b"body".as_slice()])
    };
    let mut renamed = both();
    renamed[0].name = "somebody else".to_owned();
    let [before, after] =
        [both(), renamed].map(|principals| CacheScope::of(&caller(principals, "one"), false));
    assert_ne!(key(&before), key(&after));
}

#[test]
fn keys_depend_on_the_whole_model() {
    let base = kept_model("m", &[1, 2]);
    let of = |model: &Model| {
        CacheKeyBuilder::new(
            &ModelCaching::of(model).unwrap(),
            "/e",
            &CacheScope::Anonymous,
        )
        .finish([b"x".as_slice()])
    };
    let changes: [fn(&mut Model); 8] = [
        |model| model.name = crate::fixture::name("n"),
        |model| model.cache_ttl_seconds = Some(61),
        |model| drop(model.backends.pop()),
        |model| model.backends[0].upstream_model = "other".to_owned(),
        |model| model.backends[0].api_key = Some(Secret::new("other")),
        |model| model.backends[0].draining = true,
        |model| {
            let header = ("x-a".to_owned(), Secret::new("b"));
            model.backends[1].request_options.headers.extend([header]);
        },
        |model| {
            let header = ("x-a".to_owned(), Secret::new("c"));
            model.backends[1].request_options.headers.extend([header]);
        },
    ];
    let mut keys = HashSet::from([of(&base)]);
    for change in changes {
        let mut other = base.clone();
        change(&mut other);
        assert!(keys.insert(of(&other)));
    }
    assert_eq!(of(&base), of(&base.clone()));
    for off in [None, Some(0)] {
        let model = Model {
            cache_ttl_seconds: off,
            ..base.clone()
        };
        assert_eq!(ModelCaching::of(&model), None);
    }
    let ever = Model {
        cache_ttl_seconds: Some(u64::MAX),
        ..base
    };
    assert_eq!(ModelCaching::of(&ever).unwrap().ttl().as_secs(), 31_536_000);
}

#[test]
fn keys_of_an_unchanged_model_outlive_a_snapshot() {
    let build = |models: Vec<Model>, held: Option<&RoutingState>| {
        let snapshot = snapshot(models, Vec::new(), &[]);
        RoutingState::build(&snapshot, held, &Tuning::default())
            .unwrap()
            .state
    };
    let caching = |state: &RoutingState, name: &str| state.pool(name).unwrap().caching().cloned();
    let first = build(vec![kept_model("m", &[1]), model("n", &[2])], None);
    assert_eq!(caching(&first, "n"), None);
    let kept = caching(&first, "m");
    assert!(kept.is_some());
    let other: fn(&mut Backend) = |backend| backend.upstream_model = "other".to_owned();
    let mut second = vec![kept_model("m", &[1]), model("n", &[2])];
    other(&mut second[1].backends[0]);
    let second = build(second, Some(&first));
    assert_eq!(caching(&second, "m"), kept);
    let mut third = vec![kept_model("m", &[1])];
    other(&mut third[0].backends[0]);
    assert_ne!(caching(&build(third, Some(&second)), "m"), kept);
}

#[test]
fn debug_output_of_a_key_reveals_no_content() {
    let shown = format!("{:?}", numbered(1));
    assert!(
        shown.starts_with("CacheKey(") && shown.len() == 18,
        "{shown}"
    );
}

#[test]
fn memory_of_expired_responses_is_freed() {
    let cache = cache(10, 1 << 20);
    let mut capture = cache.begin_capture(numbered(1), &caching(), None).unwrap();
    capture.push(b"x").unwrap();
    capture.ttl = Duration::from_millis(20);
    assert!(cache.insert(capture, HeaderMap::new(), 1, AT));
    let is_empty = || cache.usage() == CacheUsage::default();
    assert!(!is_empty());
    assert!((0..10_000_000).any(|_| is_empty()));
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Keep { number: u64, length: usize },
    Get { number: u64 },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let keep = (0..40_u64, 0..6000_usize).prop_map(|(number, length)| Act::Keep { number, length });
    let get = (0..40_u64).prop_map(|number| Act::Get { number });
    proptest::collection::vec(prop_oneof![keep, get], 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bounds_hold_and_a_response_never_belongs_to_another_key(
        acts in acts(),
        entries in 1..20_u64,
        bytes in 1..40_000_u64,
    ) {
        let cache = cache(entries, bytes);
        for act in acts {
            match act {
                Act::Keep { number, length } => {
                    let body = vec![u8::try_from(number).unwrap(); length];
                    prop_assert!(keep(&cache, number, &body));
                }
                Act::Get { number } => {
                    if let Some(entry) = cache.get(&numbered(number), AT) {
                        prop_assert_eq!(*entry.attachment(), number);
                        prop_assert!(entry.body().iter().all(|byte| u64::from(*byte) == number));
                    }
                }
            }
            let held = cache.usage();
            prop_assert!(held.entries <= entries && held.bytes <= bytes, "{:?}", held);
            let counted = cache.entries.iter();
            let counted: u64 = counted.map(|(_, entry)| u64::from(entry.size)).sum();
            prop_assert_eq!(held.bytes, counted);
        }
    }
}

#[test]
fn concurrent_inserts_respect_the_limits() {
    let cache = Arc::new(cache(50, 100_000));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = Arc::clone(&cache);
            scope.spawn(move || {
                for number in 0..500 {
                    keep(&cache, (number * 7 + thread) % 90, &[b'x'; 900]);
                }
            });
        }
    });
    let held = cache.usage();
    assert!(held.entries <= 50 && held.bytes <= 100_000, "{held:?}");
    assert!(held.entries > 10);
}
