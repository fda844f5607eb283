use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_engine::Tables;
use fastllm_process::back_off::Jitter;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Names;
use crate::clock;
use crate::snapshot::Current;
use crate::telemetry::Metrics;

/// Look-ups at one time.
const AT_ONCE: usize = 16;

/// How long one may take.
const LIMIT: Duration = Duration::from_secs(10);

/// How often a name is looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// At least, and up to half of it earlier at random.
    pub(super) every: Duration,
    /// The least time between the beginnings of two look-ups of one name.
    pub(super) gap: Duration,
}

const PACE: Pace = Pace {
    every: Duration::from_secs(30),
    gap: Duration::from_secs(1),
};

/// Looks up the names of the snapshot that is served, again and again.
#[derive(Debug)]
pub(crate) struct Resolver {
    names: Arc<Names>,
    current: Arc<Current>,
    metrics: Arc<Metrics>,
    pace: Pace,
    turns: HashMap<Arc<str>, Turn>,
    room: Arc<Semaphore>,
    under_way: JoinSet<(Arc<str>, io::Result<Vec<IpAddr>>)>,
}

/// When one name is looked up.
#[derive(Debug, Default)]
struct Turn {
    began: Option<Instant>,
    /// Nothing while it is.
    next: Option<Instant>,
    failing: bool,
    /// No snapshot names it any more: it is looked up for who waits, once.
    passing: bool,
}

impl Resolver {
    pub(crate) fn new(names: Arc<Names>, current: Arc<Current>, metrics: Arc<Metrics>) -> Self {
        Self {
            names,
            current,
            metrics,
            pace: PACE,
            turns: HashMap::new(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
            under_way: JoinSet::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn at(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Asks the system, until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.run_with(ask_the_system, stop).await;
    }

    /// Asks `look_up`, until `stop`.
    pub(super) async fn run_with<F>(
        mut self,
        look_up: impl Fn(Arc<str>) -> F,
        stop: CancellationToken,
    ) where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let names = Arc::clone(&self.names);
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
                () = names.bell.notified() => self.take_asked(),
                Some(ended) = self.under_way.join_next() => {
                    if let Ok((name, found)) = ended {
                        self.ended(name, found);
                    }
                }
                () = until(due) => {}
            }
        }
    }

    /// New names are looked up at once; those that are gone are forgotten.
    fn follow(&mut self) {
        let Some(tables) = self.current.tables() else {
            return;
        };
        let named = named(&tables);
        self.names.retain(|name| named.contains(name));
        self.turns.retain(|name, _| named.contains(name));
        for name in named {
            let first = || Turn {
                next: Some(clock::now()),
                ..Turn::default()
            };
            let turn = self.turns.entry(name).or_insert_with(first);
            turn.passing = false;
        }
    }

    fn take_asked(&mut self) {
        let asked = std::mem::take(&mut *self.names.asked.lock());
        for name in asked {
            let gap = self.pace.gap;
            let passing = || Turn {
                passing: true,
                ..Turn::default()
            };
            self.turns.entry(name).or_insert_with(passing).soon(gap);
        }
    }

    /// Starts what is due and says when something will be.
    fn start_due<F>(&mut self, look_up: &impl Fn(Arc<str>) -> F) -> Option<Instant>
    where
        F: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let now = clock::now();
        for (name, turn) in &mut self.turns {
            if turn.next.is_none_or(|next| next > now) {
                continue;
            }
            turn.began = Some(now);
            turn.next = None;
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
        self.turns.values().filter_map(|turn| turn.next).min()
    }

    fn ended(&mut self, name: Arc<str>, found: io::Result<Vec<IpAddr>>) {
        let found = found.and_then(|found| match found.len() {
            0 => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(found),
        });
        if found.is_err() {
            self.metrics.name_not_found();
        }
        // No snapshot may name it any more; a request may still wait for it.
        if self.turns.get(&name).is_some_and(|turn| turn.passing) {
            self.turns.remove(&name);
        }
        if let Some(turn) = self.turns.get_mut(&name) {
            turn.next = Some(clock::now() + Jitter::HALF.apply(self.pace.every));
            match (&found, turn.failing) {
                (Err(error), false) => {
                    tracing::warn!(name = &*name, %error, "a name cannot be resolved");
                }
                (Ok(_), true) => tracing::info!(name = &*name, "a name can be resolved again"),
                _ => {}
            }
            turn.failing = found.is_err();
        }
        self.names.looked_up(name, found.unwrap_or_default());
    }
}

impl Turn {
    /// As early as the gap allows, unless it is under way.
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

/// The names among the hosts of these tables; literal addresses are none.
fn named(tables: &Tables) -> HashSet<Arc<str>> {
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

async fn ask_the_system(name: Arc<str>) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((&*name, 0)).await?;
    Ok(found.map(|address| address.ip()).collect())
}
