use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fastllm_process::back_off::{self, Jitter};
use fastllm_process::error::Chain;
use fastllm_process::tls::ServerCertificate;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::AppState;
use crate::db::migrate;
use crate::serve::{self, Listener};
use crate::snapshot::Watcher;
use crate::{Config, Error, encryption_key, housekeeping};

/// Back-off between connection attempts while the database is unavailable at start.
const DATABASE_BACK_OFF: back_off::Config =
    back_off::Config::new(Duration::from_millis(200), Duration::from_secs(5))
        .with_jitter(Jitter::NONE);

/// Runs a control plane until `shutdown` completes, then drains it.
///
/// The listener opens immediately. While the database is unavailable, the process is
/// not ready and retries.
///
/// # Errors
/// An invalid configuration, a port in use, or a database that was migrated by an
/// incompatible newer release.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
    Control::bind(config)?.serve(shutdown).await
}

/// A control plane with an open listener.
pub struct Control {
    app: AppState,
    listener: Listener,
    config: Config,
}

impl Control {
    /// Checks the configuration and opens the listener. Requires a Tokio runtime.
    ///
    /// # Errors
    /// An invalid configuration, or a port in use.
    pub fn bind(config: Config) -> Result<Self, Error> {
        let tls = match (&config.tls_cert, &config.tls_key) {
            (Some(cert), Some(key)) => Some(ServerCertificate::read(cert, key)?),
            _ => None,
        };
        if tls.is_none() {
            tracing::warn!(
                "the admin API is served without TLS: set --tls-cert and --tls-key, or terminate TLS in front of it"
            );
        }
        let app = AppState::new(&config)?;
        let listener = Listener::bind(config.address(), tls.as_ref(), &config.trusted_proxies)?;
        Ok(Self {
            app,
            listener,
            config,
        })
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until `shutdown`, then drains.
    ///
    /// # Errors
    /// A database that is incompatible with this release.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let Self {
            app,
            listener,
            config,
        } = self;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let router = serve::router(&app)?;
        let address = listener.address();
        tracing::info!(%address, "control plane listening");
        let grace = Duration::from_secs(config.shutdown_grace);
        tasks.spawn(listener.serve(router, stop.clone(), grace));
        let (incompatible, mut incompatible_seen) = oneshot::channel();
        tasks.spawn(follow(
            app.clone(),
            config.rebuild_interval(),
            stop.clone(),
            incompatible,
        ));

        let outcome = tokio::select! {
            () = shutdown => Ok(()),
            incompatible = &mut incompatible_seen => Err(incompatible.unwrap_or(Error::Internal(
                "the database watcher panicked",
            ))),
        };
        app.draining.cancel();
        if outcome.is_ok() {
            tracing::info!("draining");
            sleep(Duration::from_secs(config.shutdown_delay)).await;
        }
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        app.db.close().await;
        outcome
    }
}

/// Migrates the database, then watches it for changes until `stop`.
async fn follow(
    app: AppState,
    interval: Duration,
    stop: CancellationToken,
    incompatible: oneshot::Sender<Error>,
) {
    match stop.run_until_cancelled(Box::pin(prepare(&app))).await {
        None => return,
        Some(Err(error)) => {
            // The receiver is only dropped at shutdown.
            let _ = incompatible.send(error);
            return;
        }
        Some(Ok(())) => {}
    }
    let watcher = Watcher {
        db: app.db.gateways.clone(),
        listen: app.db.listen.clone(),
        publisher: Arc::clone(&app.publisher),
        metrics: Arc::clone(&app.metrics),
        status: Arc::clone(&app.status),
        interval,
        pooled: AtomicBool::new(false),
    };
    tokio::join!(
        watcher.run(stop.clone()),
        app.tokens.run(stop.clone()),
        housekeeping::run(app.db.gateways.clone(), stop.clone())
    );
}

/// Migrates the schema and checks the encryption key; retries while the database is
/// unavailable.
async fn prepare(app: &AppState) -> Result<(), Error> {
    let mut back_off = DATABASE_BACK_OFF.build();
    loop {
        let prepared = async {
            migrate(&app.db.gateways).await?;
            encryption_key::confirm(&app.db.gateways, &app.vault).await?;
            app.tokens.refresh().await.map_err(Error::from)
        };
        match prepared.await {
            Ok(()) => {
                app.status.record(None);
                return Ok(());
            }
            Err(error) => {
                let Some(outage) = error.outage() else {
                    return Err(error);
                };
                let problem = Chain(outage).to_string();
                if app.status.record(Some(problem.clone())) {
                    tracing::warn!(problem, "the database is unavailable; retrying");
                }
            }
        }
        sleep(back_off.next_delay()).await;
    }
}
