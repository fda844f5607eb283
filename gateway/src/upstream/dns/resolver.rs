use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_engine::RoutingState;
use fastllm_process::back_off::Jitter;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::DnsCache;
use crate::runtime::clock;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;

/// The maximum number of concurrent lookups.
const MAX_CONCURRENT_LOOKUPS: usize = 16;

/// The timeout of one lookup.
const LIMIT: Duration = Duration::from_secs(10);

/// The interval between lookups of one name.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookupIntervals {
    /// The longest interval; up to half of it less at random.
    pub(super) every: Duration,
    /// The minimum time between the starts of two lookups of one name.
    pub(super) gap: Duration,
}

const INTERVALS: LookupIntervals = LookupIntervals {
    every: Duration::from_secs(30),
    gap: Duration::from_secs(1),
};

/// Looks up the names of the served snapshot periodically.
#[derive(Debug)]
pub(crate) struct Resolver {
    cache: Arc<DnsCache>,
    current: Arc<CurrentSnapshot>,
    metrics: Arc<Metrics>,
    intervals: LookupIntervals,
    lookups: HashMap<Arc<str>, LookupState>,
    room: Arc<Semaphore>,
    under_way: JoinSet<(Arc<str>, io::Result<Vec<IpAddr>>)>,
}

/// The schedule of one name.
#[derive(Debug, Default)]
struct LookupState {
    began: Option<Instant>,
    /// `None` while a lookup is running.
    next: Option<Instant>,
    failing: bool,
    /// No snapshot contains it any more: it is looked up once, for waiting
    /// requests.
    one_time: bool,
}

impl Resolver {
    pub(crate) fn new(
        cache: Arc<DnsCache>,
        current: Arc<CurrentSnapshot>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            cache,
            current,
            metrics,
            intervals: INTERVALS,
            lookups: HashMap::new(),
            room: Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)),
            under_way: JoinSet::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn at(mut self, intervals: LookupIntervals) -> Self {
        self.intervals = intervals;
        self
    }

    /// Uses the system resolver, until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.run_with(lookup_host, stop).await;
    }

    /// Uses `look_up`, until `stop`.
    pub(super) async fn run_with<F>(
        mut self,
        look_up: impl Fn(Arc<str>) -> F,
        stop: CancellationToken,
    ) where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let cache = Arc::clone(&self.cache);
        let mut changes = self.current.changes();
        self.follow();
        loop {
            let due = self.start_due(&look_up);
            tokio::select! {
                () = stop.cancelled() => return,
                alive = changes.changed() => match alive {
                    Ok(()) => self.follow(),
                    Err(_) => return,
                },
                () = cache.requested_notify.notified() => self.take_requested(),
                Some(ended) = self.under_way.join_next() => {
                    if let Ok((name, found)) = ended {
                        self.ended(name, found);
                    }
                }
                () = until(due) => {}
            }
        }
    }

    /// Schedules new names at once, and removes names that are gone.
    fn follow(&mut self) {
        let Some(tables) = self.current.tables() else {
            return;
        };
        let named = named(&tables);
        self.cache.retain(|name| named.contains(name));
        self.lookups.retain(|name, _| named.contains(name));
        for name in named {
            let first = || LookupState {
                next: Some(clock::now()),
                ..LookupState::default()
            };
            let lookup = self.lookups.entry(name).or_insert_with(first);
            lookup.one_time = false;
        }
    }

    fn take_requested(&mut self) {
        let requested = std::mem::take(&mut *self.cache.requested.lock());
        for name in requested {
            let gap = self.intervals.gap;
            let one_time = || LookupState {
                one_time: true,
                ..LookupState::default()
            };
            self.lookups.entry(name).or_insert_with(one_time).soon(gap);
        }
    }

    /// Starts the due lookups and returns when the next one is due.
    fn start_due<F>(&mut self, look_up: &impl Fn(Arc<str>) -> F) -> Option<Instant>
    where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let now = clock::now();
        for (name, lookup) in &mut self.lookups {
            if lookup.next.is_none_or(|next| next > now) {
                continue;
            }
            lookup.began = Some(now);
            lookup.next = None;
            let (name, room) = (Arc::clone(name), Arc::clone(&self.room));
            let found = look_up(Arc::clone(&name));
            self.under_way.spawn(async move {
                let _place = room.acquire_owned().await;
                let found = timeout(LIMIT, found).await;
                (
                    name,
                    found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
                )
            });
        }
        self.lookups.values().filter_map(|lookup| lookup.next).min()
    }

    fn ended(&mut self, name: Arc<str>, found: io::Result<Vec<IpAddr>>) {
        let found = found.and_then(|found| match found.len() {
            0 => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(found),
        });
        if found.is_err() {
            self.metrics.name_not_found();
        }
        // A request may still wait for a name that is in no snapshot any more.
        if self
            .lookups
            .get(&name)
            .is_some_and(|lookup| lookup.one_time)
        {
            self.lookups.remove(&name);
        }
        if let Some(lookup) = self.lookups.get_mut(&name) {
            lookup.next = Some(clock::now() + Jitter::HALF.apply(self.intervals.every));
            match (&found, lookup.failing) {
                (Err(error), false) => {
                    tracing::warn!(name = &*name, %error, "cannot resolve an upstream name");
                }
                (Ok(_), true) => {
                    tracing::info!(name = &*name, "an upstream name is resolved again");
                }
                _ => {}
            }
            lookup.failing = found.is_err();
        }
        self.cache.record_lookup(name, found.unwrap_or_default());
    }
}

impl LookupState {
    /// As early as the minimum interval allows, unless a lookup is running.
    fn soon(&mut self, gap: Duration) {
        let now = clock::now();
        let Some(began) = self.began else {
            self.next = Some(now);
            return;
        };
        let allowed = now.max(began + gap);
        self.next = self.next.map(|next| next.min(allowed));
    }
}

/// The names among the hosts of these tables, without literal addresses.
fn named(tables: &RoutingState) -> HashSet<Arc<str>> {
    tables
        .backends()
        .map(|(_, backend)| &backend.origin().host)
        .filter(|host| host.parse::<IpAddr>().is_err())
        .map(Arc::clone)
        .collect()
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

async fn lookup_host(name: Arc<str>) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((&*name, 0)).await?;
    Ok(found.map(|address| address.ip()).collect())
}
