//! Database access, one file per family of tables. All SQL is here, and nothing here
//! depends on HTTP.

#[macro_use]
mod statement;

pub(crate) mod audit;
pub(crate) mod backends;
pub(crate) mod budgets;
mod change;
pub(crate) mod encryption_key;
mod error;
pub(crate) mod gateways;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod limits_state;
pub(crate) mod logins;
mod migrate;
pub(crate) mod models;
pub(crate) mod prices;
pub(crate) mod principals;
pub(crate) mod proxy_tokens;
pub(crate) mod reconcile;
mod report;
pub(crate) mod roles;
pub(crate) mod rules;
pub(crate) mod sessions;
pub(crate) mod shares;
pub(crate) mod snapshot;
pub(crate) mod spending;
pub(crate) mod state;
pub(crate) mod subject;
pub(crate) mod targets;
pub(crate) mod teams;
pub(crate) mod usage;
pub(crate) mod virtual_models;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, Postgres};
use sqlx::{Connection, PgConnection, PgPool, PgTransaction, SqlStr, Transaction};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use change::{Actor, AuditEntry, Change};
pub(crate) use error::{DbError, Failure, Outage};
pub(crate) use migrate::{MigrationError, migrate};
pub(crate) use subject::SubjectId;

/// How long a request waits for a connection: short enough to report an unavailable
/// database quickly, long enough for a busy pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long opening a connection may take before it is checked whether the database
/// refuses connections.
const CONNECT_CHECK: Duration = Duration::from_millis(50);
/// How long a database that accepted a connection is not checked again.
const ACCEPTED: Duration = Duration::from_secs(1);
/// How long a connection may take to finish an abandoned query before it is closed:
/// connections to a silent peer must not exhaust the pool.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for reports, whose queries take long and should end with their client.
const REPORT_RELEASE_TIMEOUT: Duration = Duration::from_millis(200);

/// The pools of the database. They are separate, so that neither administrators nor
/// their reports take a connection from gateways.
#[derive(Clone)]
pub(crate) struct Pools {
    /// For gateways' requests, snapshots and housekeeping.
    pub(crate) gateways: Db,
    /// For the admin API.
    pub(crate) admin: Db,
    /// For reports of the admin API, whose queries can take long.
    pub(crate) reports: Db,
    /// For LISTEN: one connection.
    pub(crate) listen: Db,
}

/// The maximum numbers of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSizes {
    pub(crate) gateways: u32,
    pub(crate) admin: u32,
    pub(crate) reports: u32,
}

/// A pool that connects when it is first used.
#[derive(Clone)]
pub(crate) struct Db {
    options: PgConnectOptions,
    pool: PgPool,
    /// When the database last accepted a connection although the pool did not get one
    /// in time. Held while that is checked.
    accepted: Arc<Mutex<Option<Instant>>>,
}

/// The requested part of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    /// Only greater IDs (smaller ones in lists with the newest rows first).
    pub(crate) after: Option<i64>,
    /// The maximum number of rows.
    pub(crate) limit: i64,
}

impl Page {
    /// The row with this ID if it exists, otherwise the next one.
    fn from_id(id: i64) -> Self {
        Self {
            after: id.checked_sub(1),
            limit: 1,
        }
    }
}

/// The requested row.
fn only<R>(rows: Vec<R>, requested: impl FnMut(&R) -> bool) -> Result<R, DbError> {
    let row = rows.into_iter().find(requested);
    row.ok_or(DbError::NotFound)
}

impl Pools {
    /// Opens no connection yet.
    pub(crate) fn new(options: &PgConnectOptions, sizes: PoolSizes) -> Self {
        let PoolSizes {
            gateways,
            admin,
            reports,
        } = sizes;
        Self {
            gateways: Db::new(options.clone(), gateways),
            admin: Db::new(options.clone(), admin),
            reports: Db::with_release(options.clone(), reports, REPORT_RELEASE_TIMEOUT),
            listen: Db::new(options.clone(), 1),
        }
    }

    /// The numbers of idle and of all connections, without that for LISTEN.
    pub(crate) fn connections(&self) -> (usize, u32) {
        let pools = [&self.gateways, &self.admin, &self.reports];
        let idle = pools.iter().map(|pool| pool.pool.num_idle()).sum();
        (idle, pools.iter().map(|pool| pool.pool.size()).sum())
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        let Self {
            gateways,
            admin,
            reports,
            listen,
        } = self;
        for pool in [listen, reports, admin, gateways] {
            pool.close().await;
        }
    }
}

impl Db {
    /// Opens no connection yet.
    pub(crate) fn new(options: PgConnectOptions, max_connections: u32) -> Self {
        Self::with_release(options, max_connections, RELEASE_TIMEOUT)
    }

    fn with_release(options: PgConnectOptions, max_connections: u32, release: Duration) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .min_connections(0)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .after_release(move |connection, _| Box::pin(settle(connection, release)))
            .idle_timeout(Duration::from_secs(30))
            .max_lifetime(Duration::from_mins(30));
        Self {
            pool: pool.connect_lazy_with(options.clone()),
            options,
            accepted: Arc::default(),
        }
    }

    /// A connection of the pool, for transactions only: behind a transaction pooler, each
    /// statement outside of one may use another server connection. Fails at once while
    /// the database refuses connections; the pool itself would try again until its
    /// timeout.
    async fn acquire(&self) -> Result<PoolConnection<Postgres>, DbError> {
        tokio::select! {
            biased;
            acquired = self.pool.acquire() => Ok(acquired?),
            refused = self.refused() => Err(refused),
        }
    }

    /// Begins a transaction that reads one state of the database.
    pub(crate) async fn begin_reading(&self) -> Result<PgTransaction<'static>, DbError> {
        let begin = SqlStr::from_static("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        Ok(Transaction::begin(self.acquire().await?, Some(begin)).await?)
    }

    /// Begins the transaction of a report. Its queries end after a timeout, or when the
    /// transaction is dropped, as for a client that has disconnected.
    pub(crate) async fn begin_report(&self) -> Result<PgTransaction<'static>, DbError> {
        let mut transaction = self.begin_reading().await?;
        report::bound(&mut transaction).await?;
        Ok(transaction)
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&self) -> Result<PgTransaction<'static>, DbError> {
        Ok(Transaction::begin(self.acquire().await?, None).await?)
    }

    /// Completes if the database refuses connections when a new one takes longer than
    /// usual.
    async fn refused(&self) -> DbError {
        let mut pause = CONNECT_CHECK;
        loop {
            sleep(pause).await;
            pause *= 2;
            let mut accepted = self.accepted.lock().await;
            // Requests that wait for a busy pool must not open connections as well.
            if accepted.is_some_and(|at| at.elapsed() < ACCEPTED) {
                continue;
            }
            match self.connect().await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    *accepted = None;
                    return error.into();
                }
                // The pool is busy, or the connection fails in another way.
                Ok(()) | Err(_) => *accepted = Some(Instant::now()),
            }
        }
    }

    async fn connect(&self) -> io::Result<()> {
        let port = self.options.get_port();
        if let Some(path) = self.options.get_socket() {
            let socket = path.join(format!(".s.PGSQL.{port}"));
            return UnixStream::connect(socket).await.map(drop);
        }
        TcpStream::connect((self.options.get_host(), port))
            .await
            .map(drop)
    }

    /// The pool itself, for a listener.
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Waits until an abandoned query on the connection has finished. An error closes the
/// connection without a protocol-level goodbye, for which a silent peer would block.
async fn settle(connection: &mut PgConnection, within: Duration) -> Result<bool, sqlx::Error> {
    match timeout(within, connection.ping()).await {
        Ok(outcome) => outcome.map(|()| true),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}
