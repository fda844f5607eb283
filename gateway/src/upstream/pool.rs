use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_engine::{Origin, RoutingState};
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use super::ExchangeError;
use super::awaiting_response::AwaitingResponse;
use super::buffered_request::BufferedRequest;
use super::connection::{NoResponse, UpstreamConnection};
use super::connector::Connector;
use crate::runtime::Deadline;
use crate::runtime::clock;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::Metrics;

/// The idle timeout of a connection.
const IDLE_LIFETIME: Duration = Duration::from_secs(90);

/// The interval at which expired connections are closed.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// The upstream connections of one thread. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Upstreams {
    inner: Arc<UpstreamsInner>,
}

#[derive(Debug)]
struct UpstreamsInner {
    connector: Connector,
    max_idle: usize,
    metrics: Arc<Metrics>,
    idle: Mutex<HashMap<Origin, Arc<IdleList>, RandomState>>,
}

/// The idle connections of one origin, oldest first.
#[derive(Debug, Default)]
struct IdleList(Mutex<Vec<IdleConnection>>);

#[derive(Debug)]
struct IdleConnection {
    connection: UpstreamConnection,
    since: Instant,
}

/// A connection in use. Dropping it closes it at once, which aborts the
/// upstream's work when a client disconnects.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) connection: UpstreamConnection,
    idle_list: Arc<IdleList>,
    max_idle: usize,
}

impl Upstreams {
    /// Keeps at most `max_idle` idle connections per origin.
    pub(crate) fn new(connector: Connector, max_idle: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            inner: Arc::new(UpstreamsInner {
                connector,
                max_idle,
                metrics,
                idle: Mutex::default(),
            }),
        }
    }

    /// Sends a request and waits for the response head, at most for `limit`. If
    /// an idle connection is closed before any response, this is not a failure
    /// of the upstream: the request is sent once more, on a new connection.
    pub(crate) async fn exchange(
        &self,
        origin: &Origin,
        mut request: BufferedRequest,
        limit: Duration,
        deadline: &mut Deadline,
        sent: &AwaitingResponse,
    ) -> Result<Lease, ExchangeError> {
        let idle_list = self.idle_list(origin);
        let once = pin!(async {
            if let Some(mut lease) = self.reuse(&idle_list) {
                match lease.connection.exchange(&mut request, sent).await {
                    Ok(()) => return Ok(lease),
                    Err(NoResponse::Closed) => {
                        sent.clear();
                        request.rewind();
                    }
                    Err(broken) => return Err(broken.into()),
                }
            }
            // Boxed, since it is large and an idle connection is nearly always
            // available.
            let mut lease = Box::pin(self.connect_for(idle_list, origin)).await?;
            lease.connection.exchange(&mut request, sent).await?;
            Ok(lease)
        });
        deadline.arm_from(clock::recent(), limit);
        let outcome = deadline.before(once).await;
        deadline.disarm();
        match outcome {
            Some(outcome) => outcome,
            None if deadline.request_is_over() => Err(ExchangeError::RequestTimeout),
            None => Err(ExchangeError::Timeout),
        }
    }

    /// A new connection.
    pub(crate) async fn connect(&self, origin: &Origin) -> Result<Lease, ExchangeError> {
        self.connect_for(self.idle_list(origin), origin).await
    }

    async fn connect_for(
        &self,
        idle_list: Arc<IdleList>,
        origin: &Origin,
    ) -> Result<Lease, ExchangeError> {
        let socket = self.inner.connector.connect(origin).await?;
        let counted = self.inner.metrics.upstream_connected();
        Ok(self.lease(UpstreamConnection::new(socket, counted), idle_list))
    }

    /// Closes expired idle connections, and removes origins that are in no
    /// snapshot any more, until `stop`.
    pub(crate) async fn tend(self, current: Arc<CurrentSnapshot>, stop: CancellationToken) {
        let mut changes = current.changes();
        let mut tick = interval(SWEEP_EVERY);
        loop {
            tokio::select! {
                _ = tick.tick() => self.sweep(),
                alive = changes.changed() => if alive.is_err() { return },
                () = stop.cancelled() => return,
            }
            if let Some(tables) = current.tables() {
                self.retain(&tables);
            }
        }
    }

    fn sweep(&self) {
        let lists: Vec<_> = self.inner.idle.lock().values().cloned().collect();
        for list in lists {
            list.0
                .lock()
                .retain_mut(|idle| idle.is_usable(clock::now()));
        }
    }

    fn retain(&self, tables: &RoutingState) {
        let named: HashSet<&Origin> = tables
            .backends()
            .map(|(_, backend)| backend.origin())
            .collect();
        let mut idle = self.inner.idle.lock();
        idle.retain(|origin, _| named.contains(origin));
    }

    fn idle_list(&self, origin: &Origin) -> Arc<IdleList> {
        let mut idle = self.inner.idle.lock();
        match idle.get(origin) {
            Some(idle_list) => Arc::clone(idle_list),
            None => Arc::clone(idle.entry(origin.clone()).or_default()),
        }
    }

    fn lease(&self, connection: UpstreamConnection, idle_list: Arc<IdleList>) -> Lease {
        Lease {
            connection,
            idle_list,
            max_idle: self.inner.max_idle,
        }
    }

    /// The most recently used connection: the others may expire.
    fn reuse(&self, idle_list: &Arc<IdleList>) -> Option<Lease> {
        let mut list = idle_list.0.lock();
        while let Some(mut idle) = list.pop() {
            if idle.is_usable(clock::recent()) {
                return Some(self.lease(idle.connection, Arc::clone(idle_list)));
            }
        }
        None
    }
}

impl IdleConnection {
    fn is_usable(&mut self, now: Instant) -> bool {
        now.duration_since(self.since) < IDLE_LIFETIME && self.connection.is_idle()
    }
}

impl Lease {
    /// Returns the connection to the pool if its response is complete and it can
    /// be reused, or else closes it.
    pub(crate) fn release(self) {
        let Self {
            mut connection,
            idle_list,
            max_idle,
        } = self;
        let mut list = idle_list.0.lock();
        if list.len() < max_idle && connection.settle() {
            list.push(IdleConnection {
                connection,
                since: clock::recent(),
            });
        }
    }
}
