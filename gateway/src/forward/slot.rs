//! Waiting for a slot while every backend of a pool is full.

use std::time::Duration;

use fastllm_engine::{InFlight, PickContext, Pool};
use tokio::time::timeout;

/// A slot of a backend: its index in the pool, and the guard that holds it.
pub(super) type Slot = (usize, InFlight);

/// Waits for a slot of a backend that was not `tried`, in order of arrival;
/// nothing if too many requests wait already, or no slot is free within the
/// backends' queue timeout and `left`. Dropping the future, as after a
/// disconnect, leaves the queue.
pub(super) async fn wait_for_slot(
    pool: &Pool,
    tried: &[usize],
    pick: &PickContext<'_>,
    left: Duration,
) -> Option<Slot> {
    // Meanwhile a backend without a limit may be available again, which wakes no
    // waiting request.
    if let Ok(slot) = pool.acquire(tried, pick) {
        return Some(slot);
    }
    let waiting = pool.wait_for_slot(tried, pick)?;
    timeout(waiting.timeout().min(left), waiting).await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fastllm_contract::{
        Backend, BackendId, Concurrency, FORMAT, Failover, HealthCheck, Model, ModelName, Protocol,
        RequestOptions, Section, Snapshot, Timestamp,
    };
    use fastllm_engine::{EndpointIndex, PickContext, Pool, RoutingState, Tuning};

    use super::wait_for_slot;
    use crate::runtime::clock;

    const LONG: Duration = Duration::from_mins(1);

    fn backend(id: u64, concurrency: Concurrency) -> Backend {
        Backend {
            id: BackendId(id),
            api_base: format!("http://a{id}"),
            upstream_model: "a".to_owned(),
            api_key: None,
            protocol: Protocol::Openai,
            auth_header: "authorization".to_owned(),
            auth_scheme: None,
            default_max_tokens: None,
            weight: 1,
            draining: false,
            concurrency,
            request_options: RequestOptions::default(),
            health: HealthCheck::default(),
        }
    }

    /// Allows one request at a time.
    fn limited(max_queue: u32, queue_timeout_ms: u64) -> Concurrency {
        Concurrency {
            max: Some(1),
            max_queue,
            queue_timeout_ms,
        }
    }

    fn pool(backends: Vec<Backend>) -> Arc<Pool> {
        let model = Model {
            cache_ttl_seconds: None,
            failover: Failover::default(),
            name: ModelName::new("a").unwrap(),
            policy: None,
            context_length: None,
            backends,
        };
        let snapshot = Snapshot {
            teams: Section::default(),
            format: FORMAT,
            version: 1,
            open: true,
            models: Section::complete("m", vec![model]),
            principals: Section::complete("p", Vec::new()),
            virtual_models: Section::default(),
            fallback_model: None,
            key_shards: Vec::new(),
        };
        let built = RoutingState::build(&snapshot, None, &Tuning::default()).unwrap();
        let pool = built.state.pools().next().unwrap();
        Arc::clone(pool)
    }

    fn pick() -> PickContext<'static> {
        PickContext {
            at: clock::timestamp(),
            endpoint: EndpointIndex::default(),
            stream: false,
            prompt: &[],
            stored: &[],
        }
    }

    #[tokio::test]
    async fn a_waiting_request_gets_the_slot_of_a_finished_one() {
        let pool = pool(vec![backend(1, limited(1, 60_000))]);
        let slot = pool.acquire(&[], &pick()).unwrap();
        let pick = pick();
        let (served, ()) =
            tokio::join!(wait_for_slot(&pool, &[], &pick, LONG), async { drop(slot) });
        assert_eq!(served.unwrap().0, 0);
    }

    #[tokio::test]
    async fn the_wait_is_limited_by_the_backend_and_the_request() {
        for (timeout_ms, left) in [(1, LONG), (60_000, Duration::from_millis(1))] {
            let pool = pool(vec![backend(1, limited(1, timeout_ms))]);
            let slot = pool.acquire(&[], &pick()).unwrap();
            assert!(wait_for_slot(&pool, &[], &pick(), left).await.is_none());
            assert_eq!(pool.backends()[0].state().waiting(), 0);
            drop(slot);
        }
    }

    #[tokio::test]
    async fn a_full_queue_rejects_at_once() {
        let pool = pool(vec![backend(1, limited(0, 60_000))]);
        let _place = pool.acquire(&[], &pick()).unwrap();
        assert!(wait_for_slot(&pool, &[], &pick(), LONG).await.is_none());
    }

    #[tokio::test]
    async fn a_restored_backend_without_a_limit_is_used_at_once() {
        let pool = pool(vec![
            backend(1, limited(1, 60_000)),
            backend(2, Concurrency::default()),
        ]);
        let unlimited = pool.backends()[1].state();
        unlimited.back_off(clock::timestamp(), LONG);
        let _place = pool.acquire(&[], &pick()).unwrap();
        assert!(pool.acquire(&[], &pick()).is_err());
        let later = PickContext {
            at: Timestamp(clock::timestamp().0 + 120_000_000),
            ..pick()
        };
        assert_eq!(wait_for_slot(&pool, &[], &later, LONG).await.unwrap().0, 1);
        assert_eq!(pool.backends()[0].state().waiting(), 0);
    }
}
