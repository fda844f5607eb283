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

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, Postgres};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::time::timeout;

pub(crate) use change::{Actor, AuditEntry, Change};
pub(crate) use error::{DbError, Failure};
pub(crate) use migrate::{MigrationError, migrate};
pub(crate) use subject::SubjectId;

/// How long a request waits for a connection: short enough to report an unavailable
/// database quickly, long enough for a busy pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection may take to finish an abandoned query before it is closed:
/// connections to a silent peer must not exhaust the pool.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The database: a pool that connects when it is first used.
#[derive(Clone)]
pub(crate) struct Db {
    pool: PgPool,
    /// A separate connection for LISTEN, so that it never takes one from requests.
    listen_pool: PgPool,
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
            listen_pool: pool(1).connect_lazy_with(options),
        }
    }

    pub(crate) async fn acquire(&self) -> Result<PoolConnection<Postgres>, DbError> {
        Ok(self.pool.acquire().await?)
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
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
