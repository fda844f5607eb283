//! Database access, one file per family of tables. All SQL is here, and nothing here
//! depends on HTTP.

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
mod migrate;
pub(crate) mod models;
pub(crate) mod prices;
pub(crate) mod principals;
pub(crate) mod reconcile;
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
use tokio::time::{sleep, timeout};

pub(crate) use change::{Actor, AuditEntry, Change};
pub(crate) use error::{DbError, Failure};
pub(crate) use migrate::{MigrationError, migrate};
pub(crate) use subject::SubjectId;

/// How long a request waits for a connection: short enough to report an unavailable
/// database quickly, long enough for a busy pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long opening a connection may take before it is checked whether the database
/// refuses connections.
const CONNECT_CHECK: Duration = Duration::from_millis(50);
/// How long a connection may take to finish an abandoned query before it is closed:
/// connections to a silent peer must not exhaust the pool.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The database: a pool that connects when it is first used.
#[derive(Clone)]
pub(crate) struct Db {
    options: PgConnectOptions,
    pool: PgPool,
    /// A separate connection for LISTEN, so that it never takes one from requests.
    listen_pool: PgPool,
    /// Held while it is checked whether the database refuses connections.
    checking: Arc<Mutex<()>>,
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

impl Db {
    /// Opens no connection yet.
    pub(crate) fn new(options: PgConnectOptions, max_connections: u32) -> Self {
        let pool = |connections| {
            PgPoolOptions::new()
                .max_connections(connections)
                .min_connections(0)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .after_release(|connection, _| Box::pin(settle(connection)))
                .idle_timeout(Duration::from_secs(30))
                .max_lifetime(Duration::from_mins(30))
        };
        Self {
            pool: pool(max_connections).connect_lazy_with(options.clone()),
            listen_pool: pool(1).connect_lazy_with(options.clone()),
            options,
            checking: Arc::default(),
        }
    }

    /// A connection of the pool. Fails at once while the database refuses connections;
    /// the pool itself would try again until its timeout.
    pub(crate) async fn acquire(&self) -> Result<PoolConnection<Postgres>, DbError> {
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
            let checking = self.checking.lock().await;
            match self.connect().await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return error.into();
                }
                // The pool is busy, or the connection fails in another way.
                Ok(()) | Err(_) => {}
            }
            drop(checking);
            pause *= 2;
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

    /// The numbers of idle and of all connections.
    pub(crate) fn connections(&self) -> (usize, u32) {
        (self.pool.num_idle(), self.pool.size())
    }

    pub(crate) fn listen_pool(&self) -> &PgPool {
        &self.listen_pool
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        self.listen_pool.close().await;
        self.pool.close().await;
    }
}

/// Waits until an abandoned query on the connection has finished. An error closes the
/// connection without a protocol-level goodbye, for which a silent peer would block.
async fn settle(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match timeout(RELEASE_TIMEOUT, connection.ping()).await {
        Ok(outcome) => outcome.map(|()| true),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}
