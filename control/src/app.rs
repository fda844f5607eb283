use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_contract::Secret;
use tokio_util::sync::CancellationToken;

use crate::crypto::{LoginThrottle, Passwords, TokenSet, Vault};
use crate::db::{AuditEntry, Change, Db, DbError};
use crate::metrics::Metrics;
use crate::snapshot::{DatabaseStatus, Publisher};
use crate::{Config, Error, clock, config};

/// How long a change waits until it is published before it is answered.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(2);

/// What every handler can reach. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Inner>);

/// The parts of a running control plane.
pub(crate) struct Inner {
    pub(crate) db: Db,
    pub(crate) vault: Arc<Vault>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) status: Arc<DatabaseStatus>,
    pub(crate) passwords: Passwords,
    pub(crate) throttle: LoginThrottle,
    pub(crate) tokens: TokenSet,
    /// Cancelled when the process is about to stop: it is unready, and whoever
    /// waits for a change is answered.
    pub(crate) draining: CancellationToken,
    pub(crate) started: Instant,
    /// The admin listener is encrypted.
    pub(crate) tls: bool,
    pub(crate) operator_resource: Option<String>,
}

impl Deref for AppState {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl AppState {
    /// Puts the parts together; connects to nothing.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let token: Secret = config.token()?;
        let vault = Arc::new(config::vault_from_environment()?);
        let metrics = Arc::new(Metrics::new()?);
        let db = Db::new(
            config.database.options()?,
            config.database.database_max_connections,
        );
        let publisher = Publisher::new(db.clone(), Arc::clone(&vault), Arc::clone(&metrics));
        Ok(Self(Arc::new(Inner {
            db,
            vault,
            publisher: Arc::new(publisher),
            metrics,
            status: Arc::default(),
            passwords: Passwords::new()?,
            throttle: LoginThrottle::default(),
            tokens: TokenSet::new([&token]),
            draining: CancellationToken::new(),
            started: clock::monotonic(),
            tls: config.tls_cert.is_some(),
            operator_resource: config.operator_resource.clone(),
        })))
    }

    /// Commits a change with its audit row, then publishes it. Publishing late
    /// or not at all does not fail the change: the watcher tries again.
    pub(crate) async fn commit(&self, change: Change, entry: AuditEntry) -> Result<(), DbError> {
        let version = change.commit(entry).await?;
        let refreshed = self.publisher.refresh_to(Some(version));
        match tokio::time::timeout(PUBLISH_PATIENCE, refreshed).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(%error, version, "a change is not published yet"),
            Err(_) => tracing::error!(version, "a change is not published in time"),
        }
        Ok(())
    }
}
