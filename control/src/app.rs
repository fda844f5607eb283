use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastllm_process::error::Chain;
use tokio_util::sync::CancellationToken;

use crate::crypto::{Passwords, Vault};
use crate::db::{AuditEntry, Change, DbError, Pools};
use crate::login_throttle::LoginThrottle;
use crate::metrics::Metrics;
use crate::proxy_tokens::ProxyTokens;
use crate::snapshot::{DatabaseStatus, Publisher};
use crate::{Config, Error, clock, config};

/// How long the response to a change waits for its publication.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The state shared by all handlers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Inner>);

/// The parts of a running control plane.
pub(crate) struct Inner {
    pub(crate) db: Pools,
    pub(crate) vault: Arc<Vault>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) status: Arc<DatabaseStatus>,
    pub(crate) passwords: Passwords,
    pub(crate) throttle: LoginThrottle,
    pub(crate) tokens: ProxyTokens,
    /// Cancelled when shutdown begins: the process becomes unready, and requests
    /// that wait for a change return.
    pub(crate) draining: CancellationToken,
    pub(crate) started: Instant,
    /// Whether the admin listener uses TLS.
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
    /// Creates the components. Opens no connection.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let token = config.token()?;
        let vault = Arc::new(config::vault_from_environment()?);
        let metrics = Arc::new(Metrics::new()?);
        let db = Pools::new(&config.database.options()?, config.database.pool_sizes());
        let publisher = Publisher::new(
            db.gateways.clone(),
            Arc::clone(&vault),
            Arc::clone(&metrics),
        );
        let grace = Duration::from_secs(config.proxy_token_grace);
        let tokens = ProxyTokens::new(&token, grace, db.gateways.clone());
        Ok(Self(Arc::new(Inner {
            db,
            vault,
            publisher: Arc::new(publisher),
            metrics,
            status: Arc::default(),
            passwords: Passwords::new()?,
            throttle: LoginThrottle::default(),
            tokens,
            draining: CancellationToken::new(),
            started: clock::monotonic(),
            tls: config.tls_cert.is_some(),
            operator_resource: config.operator_resource.clone(),
        })))
    }

    /// Commits a change with its audit record, then publishes it. A failed or late
    /// publication does not fail the change: the watcher retries.
    pub(crate) async fn commit(&self, change: Change, entry: AuditEntry) -> Result<(), DbError> {
        let version = change.commit(entry).await?;
        let refreshed = self.publisher.refresh_to(Some(version));
        match tokio::time::timeout(PUBLISH_TIMEOUT, refreshed).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::error!(error = %Chain(&error), version, "publishing a change failed; it is retried");
            }
            Err(_) => tracing::error!(version, "publishing a change timed out; it is retried"),
        }
        Ok(())
    }
}
