//! Who asks, who answers, and the tables that say so.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::Context;
use fastllm_contract::{Snapshot, Timestamp};
use fastllm_engine::hash_key;
use fastllm_engine::{
    CacheKeyBuilder, CacheLimits, CacheScope, Caller, EndpointIndex, PickContext, ResponseCache,
    RouteQuery, RoutingState, Tuning, identify, resolve,
};
use fastllm_steps::{Size, Stopwatch, answer, chat, key, model, snapshot, tables};
use http::HeaderMap;

const AT: Timestamp = Timestamp(1_767_225_600_000_000);

pub(crate) fn run(watch: Stopwatch) -> anyhow::Result<()> {
    let few = Size {
        keys: 1_000,
        models: 10,
    };
    let many = Size {
        keys: 100_000,
        models: 1_000,
    };
    watch.time("hash-key", || hash_key(black_box(b"sk-bench-00000000")))?;
    for (size, identified, routed) in [
        (few, "identify-1k-keys", "route-10-models"),
        (many, "identify-100k-keys", "route-1000-models"),
    ] {
        let tables = tables(size)?;
        time_identify(watch, identified, &tables, size)?;
        time_route(watch, routed, &tables, size)?;
    }
    let tables = tables(few)?;
    time_virtual(watch, &tables)?;
    time_place(watch, &tables)?;
    time_kept(watch, few)?;
    time_build(watch, many)
}

/// In an order in which nothing is in a cache because it was asked just before.
fn shuffled(to: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..to).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    order
}

fn time_identify(
    watch: Stopwatch,
    step: &str,
    tables: &RoutingState,
    size: Size,
) -> anyhow::Result<()> {
    let keys: Vec<String> = shuffled(size.keys).into_iter().map(key).collect();
    let mut keys = keys.iter().cycle();
    watch.time(step, || {
        let key = keys.next().map(String::as_bytes);
        identify(black_box(tables), key, AT)
    })?;
    Ok(())
}

fn caller(tables: &RoutingState, number: u32) -> anyhow::Result<Caller> {
    let caller = identify(tables, Some(key(number).as_bytes()), AT);
    caller.ok().context("a key is not known")
}

fn ask(headers: &HeaderMap) -> RouteQuery<'_> {
    RouteQuery {
        stream: false,
        endpoint: EndpointIndex::default(),
        prompt_tokens: 300,
        max_tokens: Some(64),
        headers,
        at: AT,
        prompt_hash: 0x5eed,
        budget_used_percent: None,
    }
}

/// Each model in turn, requested by a principal with a grant on it.
fn time_route(
    watch: Stopwatch,
    step: &str,
    tables: &RoutingState,
    size: Size,
) -> anyhow::Result<()> {
    let headers = HeaderMap::new();
    let asked = shuffled(size.models)
        .into_iter()
        .map(|number| Ok((caller(tables, number / 10 * 10)?, model(number))))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (first, name) = asked.first().context("there are no models")?;
    let chain = resolve(tables, name).and_then(|found| found.route(first, &ask(&headers), None));
    chain.ok().context("the first model has no route")?;
    let mut asked = asked.iter().cycle();
    watch.time(step, || {
        let (caller, name) = asked.next()?;
        let resolved = resolve(black_box(tables), name).ok()?;
        resolved.route(caller, &ask(&headers), None).ok()
    })?;
    Ok(())
}

fn time_virtual(watch: Stopwatch, tables: &RoutingState) -> anyhow::Result<()> {
    let headers = HeaderMap::new();
    let caller = caller(tables, 0)?;
    let route = || {
        let resolved = resolve(black_box(tables), "smart")?;
        resolved.route(&caller, &ask(&headers), None)
    };
    let chain = route().ok().context("the virtual model has no route")?;
    anyhow::ensure!(chain.pools().len() == 2, "another rule holds");
    watch.time("route-virtual", route)?;
    Ok(())
}

fn time_place(watch: Stopwatch, tables: &RoutingState) -> anyhow::Result<()> {
    let pool = tables.pools().next().context("there are no models")?;
    let pick = PickContext {
        at: AT,
        endpoint: EndpointIndex::default(),
        stream: false,
        prompt: &[],
        stored: &[],
    };
    watch.time("take-place", || black_box(pool).acquire(&[], &pick).ok())?;
    Ok(())
}

/// A cache hit, and storing a response.
fn time_kept(watch: Stopwatch, size: Size) -> anyhow::Result<()> {
    let mut whole = snapshot(size)?;
    let models = whole.models.items.as_mut().context("there are no models")?;
    for model in Arc::make_mut(models) {
        model.cache_ttl_seconds = Some(3_600);
    }
    let tables = RoutingState::build(&whole, None, &Tuning::default())?.state;
    let pool = tables.pools().next().context("there are no models")?;
    let caching = pool.caching().context("its answers are not kept")?;
    let audience = CacheScope::of(&caller(&tables, 0)?, false);
    let cache = ResponseCache::new(CacheLimits {
        entries: 4_096,
        bytes: 64 << 20,
    });
    let cache = cache.context("there is no room")?;
    let answer = answer(250);
    for (step, bytes) in [("find-kept-1k", 1 << 10), ("find-kept-64k", 64 << 10)] {
        let body = chat(bytes);
        let make = || {
            let mut key = CacheKeyBuilder::new(caching, "/chat/completions", &audience);
            key.header("accept", b"application/json");
            key.finish([black_box(body.as_slice())])
        };
        let keep = || {
            let mut capture = cache.begin_capture(make(), caching, Some(answer.len() as u64))?;
            capture.push(&answer)?;
            cache
                .insert(capture, HeaderMap::new(), (), AT)
                .then_some(())
        };
        keep().context("a response was not cached")?;
        watch.time(step, || cache.get(&make(), AT))?;
        if bytes == 1 << 10 {
            watch.time("keep-answer-1k", keep)?;
        }
    }
    Ok(())
}

/// Everything a thousand keys: off the request path.
fn time_build(watch: Stopwatch, size: Size) -> anyhow::Result<()> {
    let thousands = size.keys / 1_000;
    let whole = snapshot(size)?;
    let text = serde_json::to_vec(&whole)?;
    watch.each("parse-1k-keys", thousands, || {
        serde_json::from_slice::<Snapshot>(black_box(&text)).map(drop)
    })?;
    let tuning = Tuning::default();
    watch.each("build-1k-keys", thousands, || {
        RoutingState::build(black_box(&whole), None, &tuning).map(drop)
    })?;
    let held = RoutingState::build(&whole, None, &tuning)?.state;
    let mut changed = whole;
    let shard = changed
        .key_shards
        .first_mut()
        .context("there are no keys")?;
    shard.keys.digest.push_str("-changed");
    watch.time("build-one-shard", || {
        RoutingState::build(black_box(&changed), Some(&held), &tuning).map(drop)
    })?;
    Ok(())
}
