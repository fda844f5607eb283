use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_engine::{Origin, Tables};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, RwLock};
use tokio::task::AbortHandle;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::AttemptError;
use super::body::UpstreamBody;
use super::connect::Connector;
use super::request_body::RequestBody;
use crate::clock;
use crate::snapshot::Current;
use crate::tasks::Tasks;

/// How long an idle connection is kept.
const IDLE_LIFETIME: Duration = Duration::from_secs(90);

/// How often connections that are too old are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// How long a connection may take to become free after its answer has ended.
const SETTLE: Duration = Duration::from_secs(1);

/// The connections to every upstream. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Upstreams {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connector: Connector,
    tasks: Tasks,
    max_idle: usize,
    idle: RwLock<HashMap<Origin, Arc<IdleList>>>,
}

/// The idle connections of one origin, oldest first.
#[derive(Debug, Default)]
struct IdleList(Mutex<Vec<Idle>>);

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// An open connection. Dropping it closes it at once.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<RequestBody>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A connection in use. Dropping it closes it at once, which is how a client
/// that leaves stops the upstream.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Connection,
    home: Arc<IdleList>,
    upstreams: Upstreams,
    reused: bool,
}

/// An upstream's answer, its body still to come.
#[derive(Debug)]
pub(crate) struct UpstreamAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: UpstreamBody,
}

impl Upstreams {
    /// Keeps at most `max_idle` idle connections per origin.
    pub(crate) fn new(connector: Connector, tasks: Tasks, max_idle: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                connector,
                tasks,
                max_idle,
                idle: RwLock::default(),
            }),
        }
    }

    /// Sends a request and waits for the head of the answer, no longer than
    /// `limit`. `build` is asked again where an idle connection turns out to be
    /// dead before anything was answered: that is no failure of the upstream,
    /// so it is sent once more, on a new connection.
    pub(crate) async fn exchange(
        &self,
        origin: &Origin,
        build: impl Fn() -> Result<Request<RequestBody>, AttemptError>,
        limit: Duration,
    ) -> Result<UpstreamAnswer, AttemptError> {
        let home = self.home(origin);
        let once = async {
            if let Some(lease) = self.reuse(&home) {
                match self.send(lease, build()?).await {
                    Err(Failed::Dead) => {}
                    Err(Failed::Attempt(error)) => return Err(error),
                    Ok(answer) => return Ok(answer),
                }
            }
            let lease = self.open(origin, home).await?;
            match self.send(lease, build()?).await {
                Ok(answer) => Ok(answer),
                Err(Failed::Attempt(error)) => Err(error),
                Err(Failed::Dead) => Err(AttemptError::Broken("closed".to_owned())),
            }
        };
        timeout(limit, once)
            .await
            .unwrap_or(Err(AttemptError::Timeout))
    }

    /// Closes connections that were idle for too long, and forgets origins
    /// that no snapshot names any more, until `stop`.
    pub(crate) async fn tend(self, current: Arc<Current>, stop: CancellationToken) {
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
        let lists: Vec<_> = self.shared.idle.read().values().cloned().collect();
        for list in lists {
            list.0.lock().retain(Idle::is_fresh);
        }
    }

    fn retain(&self, tables: &Tables) {
        let named: HashSet<&Origin> = tables
            .backends()
            .map(|(_, backend)| backend.origin())
            .collect();
        let known = |origin: &Origin| named.contains(origin);
        self.shared.idle.write().retain(|origin, _| known(origin));
        self.shared.connector.retain(known);
    }

    fn home(&self, origin: &Origin) -> Arc<IdleList> {
        if let Some(home) = self.shared.idle.read().get(origin) {
            return Arc::clone(home);
        }
        Arc::clone(self.shared.idle.write().entry(origin.clone()).or_default())
    }

    /// The connection that was used last: the others may grow old.
    fn reuse(&self, home: &Arc<IdleList>) -> Option<Lease> {
        let mut list = home.0.lock();
        while let Some(idle) = list.pop() {
            if idle.is_fresh() && idle.connection.sender.is_ready() {
                return Some(Lease {
                    connection: idle.connection,
                    home: Arc::clone(home),
                    upstreams: self.clone(),
                    reused: true,
                });
            }
        }
        None
    }

    async fn open(&self, origin: &Origin, home: Arc<IdleList>) -> Result<Lease, AttemptError> {
        let stream = self.shared.connector.connect(origin).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| AttemptError::Connect(error.to_string()))?;
        let driver = self.shared.tasks.spawn(async move {
            // Whoever waits for the answer learns of the failure, too.
            if let Err(error) = connection.await {
                tracing::trace!(%error, "an upstream connection ended");
            }
        });
        Ok(Lease {
            connection: Connection { sender, driver },
            home,
            upstreams: self.clone(),
            reused: false,
        })
    }

    async fn send(
        &self,
        mut lease: Lease,
        request: Request<RequestBody>,
    ) -> Result<UpstreamAnswer, Failed> {
        match lease.connection.sender.try_send_request(request).await {
            Ok(answer) => Ok(UpstreamAnswer::new(answer, lease)),
            Err(mut failure) => {
                let unsent = failure.take_message().is_some();
                let error = failure.into_error();
                // A peer that closes an idle connection does so with a FIN or
                // a reset, before it has read the request.
                let closed = unsent
                    || error.is_canceled()
                    || error.is_closed()
                    || error.is_incomplete_message()
                    || is_reset(&error);
                if lease.reused && closed {
                    Err(Failed::Dead)
                } else {
                    Err(Failed::Attempt(AttemptError::Broken(error.to_string())))
                }
            }
        }
    }
}

enum Failed {
    /// The connection was closed while it was idle.
    Dead,
    Attempt(AttemptError),
}

fn is_reset(error: &hyper::Error) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|error| {
            matches!(
                error.kind(),
                std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
            )
        })
}

impl Idle {
    fn is_fresh(&self) -> bool {
        clock::now().duration_since(self.since) < IDLE_LIFETIME
            && !self.connection.sender.is_closed()
    }
}

impl Lease {
    /// Gives the connection back after a complete answer.
    pub(super) fn release(mut self) {
        if self.connection.sender.is_ready() {
            self.park();
            return;
        }
        if self.connection.sender.is_closed() {
            return;
        }
        // Its task has not seen yet that the answer is complete.
        let tasks = self.upstreams.shared.tasks.clone();
        tasks.spawn(async move {
            if let Ok(Ok(())) = timeout(SETTLE, self.connection.sender.ready()).await {
                self.park();
            }
        });
    }

    fn park(self) {
        let Self {
            connection,
            home,
            upstreams,
            reused: _,
        } = self;
        let mut list = home.0.lock();
        if list.len() < upstreams.shared.max_idle {
            list.push(Idle {
                connection,
                since: clock::now(),
            });
        }
    }
}

impl UpstreamAnswer {
    fn new(answer: Response<Incoming>, lease: Lease) -> Self {
        let (head, body) = answer.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            body: UpstreamBody::new(body, lease),
        }
    }
}
