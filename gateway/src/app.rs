//! The composition root: builds every room and ties them together.

mod shutdown;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::available_parallelism;

use fastllm_engine::Tuning;
use fastllm_process::accept::ListenError;
use fastllm_process::logging::LogError;
use fastllm_process::signals;
use fastllm_process::tls::{ServerCertificate, TlsError};
use rustls::ServerConfig;
use shutdown::ShutdownSequence;
use tokio::signal::unix::Signal;

use crate::cache::CachedResponses;
use crate::cli::{Config, Origin, OriginError};
use crate::control_plane::ControlClient;
use crate::control_plane::ControlPlaneTasks;
use crate::control_plane::{UsageQueue, UsageReceiver, usage_queue};
use crate::forward::{Forwarder, IdleTimeouts};
use crate::http::{BodyLimits, Cors};
use crate::pipeline::Pipeline;
use crate::request_log::AccountingSink;
use crate::runtime::{BackgroundTasks, Tasks};
use crate::runtime::{Worker, Workers};
use crate::serve::{Listener, Service, Shutdown, Status, WorkerSet};
use crate::snapshot::{CurrentSnapshot, FileError, Watcher};
use crate::telemetry::{Metrics, TraceExporter, start_tracing};
use crate::tls;
use crate::upstream::Prober;
use crate::upstream::{Connector, Resolver, Upstreams};

/// Protocols that are offered to clients over TLS.
const CLIENT_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why a gateway does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Certificates cannot be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Logging cannot be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The flags do not say what to serve.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The configuration file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A client library refuses its settings.
    #[error("cannot set up {what}: {reason}")]
    Setup {
        /// What.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// Something that should run for ever has ended.
    #[error("{0} has ended unexpectedly")]
    Ended(&'static str),
}

impl Error {
    /// Whether the flags are at fault, so that another start would not help.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Tls(_) | Self::Log(_) | Self::Origin(_) | Self::File(_) => true,
            Self::Listen(_) | Self::Setup { .. } | Self::Ended(_) => false,
        }
    }
}

/// A gateway whose ports are open, but which does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    config: Config,
    public: Listener,
    status: Option<Listener>,
    components: Components,
}

/// What is shared by what runs.
#[derive(Debug)]
struct Components {
    source: SnapshotSource,
    probe_client: reqwest::Client,
    metrics: Arc<Metrics>,
    sink: Arc<AccountingSink>,
    current: Arc<CurrentSnapshot>,
    cached: Arc<CachedResponses>,
    connector: Connector,
    workers: Arc<Workers>,
    certificate: Option<Arc<ServerCertificate>>,
    tls: Option<Arc<ServerConfig>>,
    traces: Option<TraceExporter>,
    boot_id: Arc<str>,
}

/// Who says what to serve, and is told what was served.
#[derive(Debug)]
enum SnapshotSource {
    Control {
        client: ControlClient,
        receiver: UsageReceiver,
    },
    File {
        watcher: Watcher,
        hang_up: Signal,
    },
}

impl SnapshotSource {
    /// Also gives the queue of what it is told. A file is read and served.
    fn open(
        config: &Config,
        tls: &rustls::ClientConfig,
        metrics: &Arc<Metrics>,
        current: &Arc<CurrentSnapshot>,
    ) -> Result<(Self, UsageQueue), Error> {
        match config.origin()? {
            Origin::Control { url, token } => {
                let client = ControlClient::new(url.clone(), token, tls.clone())
                    .map_err(|error| setup("the way to control")(&error))?;
                let (usage, receiver) = usage_queue(metrics);
                Ok((Self::Control { client, receiver }, usage))
            }
            Origin::File(file) => {
                let hang_up = signals::hangup().map_err(|error| setup("signals")(&error))?;
                let (current, metrics) = (Arc::clone(current), Arc::clone(metrics));
                let usage = UsageQueue::disabled();
                let watcher = Watcher::start(file, current, metrics, config.config_poll)?;
                Ok((Self::File { watcher, hang_up }, usage))
            }
        }
    }
}

fn setup(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Error {
    move |reason| Error::Setup {
        what,
        reason: reason.to_string(),
    }
}

impl Components {
    fn build(config: &Config) -> Result<Self, Error> {
        let tls = tls::client_config(config.ca_bundle.as_deref())?;
        let probe_client = Prober::client(tls.clone()).map_err(|error| setup("probes")(&error))?;
        let metrics = Metrics::new()
            .and_then(|metrics| metrics.with_labels(&config.metadata_labels))
            .map_err(|error| setup("metrics")(&error))?;
        let metrics = Arc::new(metrics);
        let boot_id = boot_id().map_err(|error| setup("random numbers")(&error))?;
        let tuning = Tuning {
            policy: config.policy,
            ..Tuning::default()
        };
        let certificate = match (&config.gateway_tls_cert, &config.gateway_tls_key) {
            (Some(chain), Some(key)) => Some(ServerCertificate::read(chain, key)?),
            _ => None,
        };
        let threads = match config.workers {
            Some(workers) => usize::from(workers),
            None => available_parallelism().map_or(1, usize::from),
        };
        let current = Arc::new(CurrentSnapshot::new(Arc::clone(&metrics), tuning));
        let (source, usage) = SnapshotSource::open(config, &tls, &metrics, &current)?;
        let tracing = start_tracing(config, tls.clone(), &metrics)
            .map_err(|error| setup("traces")(&error))?;
        let (tracer, exporter) = tracing.unzip();
        let cached = Arc::new(CachedResponses::new(config));
        let sink = AccountingSink::new(Arc::clone(&metrics), usage, Arc::clone(&boot_id))
            .with_cache(Arc::clone(&cached))
            .traced(tracer)
            .logged_as(config.log_format);
        Ok(Self {
            source,
            probe_client,
            sink: Arc::new(sink),
            current,
            cached,
            metrics,
            connector: Connector::new(tls),
            tls: certificate
                .as_ref()
                .map(|certificate| certificate.server_config(&CLIENT_PROTOCOLS))
                .transpose()?,
            certificate,
            workers: Arc::new(Workers::start(threads).map_err(|error| setup("threads")(&error))?),
            traces: exporter,
            boot_id,
        })
    }
}

/// A random text per start.
fn boot_id() -> Result<Arc<str>, ring::error::Unspecified> {
    let mut bytes = [0_u8; 8];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)?;
    let number = u64::from_be_bytes(bytes);
    Ok(Arc::from(format!("{number:016x}")))
}

impl Gateway {
    /// Builds everything and opens the ports. Needs a tokio runtime.
    pub fn bind(config: Config) -> Result<Self, Error> {
        let components = Components::build(&config)?;
        let public = Listener::bind(
            SocketAddr::new(config.host, config.port),
            config.max_connections,
        )?;
        let status = config
            .status_port
            .map(|port| Listener::bind(SocketAddr::new(config.host, port), config.max_connections))
            .transpose()?;
        Ok(Self {
            config,
            public,
            status,
            components,
        })
    }

    /// Where clients are served.
    pub fn address(&self) -> SocketAddr {
        self.public.address()
    }

    /// Where the status is served, if on a port of its own.
    pub fn status_address(&self) -> Option<SocketAddr> {
        self.status.as_ref().map(Listener::address)
    }

    fn announce(&self) {
        let config = &self.config;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            address = %self.address(),
            status_address = self.status_address().map(tracing::field::display),
            control = config.control_url.as_ref().map(tracing::field::display),
            config = config.config.as_ref().map(|path| tracing::field::display(path.display())),
            role = "proxy",
            "the gateway listens"
        );
    }

    /// Serves until `shutdown` resolves, then ends in order: unready, wait,
    /// close the ports, let running answers finish, send the last usage.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
        self.announce();
        let Self {
            config,
            public,
            status: status_port,
            components,
        } = self;
        let status = Arc::new(Status::new(
            Arc::clone(&components.current),
            Arc::clone(&components.sink),
        ));
        let mut background = BackgroundTasks::default();
        let public_worker_set =
            components.public_worker_set(&config, &status, status_port.is_none(), &mut background);
        let (public_shutdown, status_shutdown) = (Shutdown::default(), Shutdown::default());
        let mut listeners = BackgroundTasks::default();
        listeners.spawn(
            "the listener",
            public.run(public_worker_set, public_shutdown.clone()),
        );
        if let Some(port) = status_port {
            let worker_set =
                components.worker_set(&config, None, |_| Service::Status(Arc::clone(&status)));
            listeners.spawn(
                "the status listener",
                port.run(worker_set, status_shutdown.clone()),
            );
        }
        let workers = Arc::clone(&components.workers);
        components.start(&config, &mut background);

        let ended = tokio::select! {
            () = shutdown => None,
            name = background.ended() => Some(name),
            name = listeners.ended() => Some(name),
        };
        status.drain();
        let closing = ShutdownSequence {
            public_shutdown,
            status_shutdown,
            listeners,
            background,
            workers,
        };
        closing.run(&config).await;
        ended.map_or(Ok(()), |name| Err(Error::Ended(name)))
    }
}

impl Components {
    /// What serves clients: each thread with its own connections to upstreams.
    fn public_worker_set(
        &self,
        config: &Config,
        status: &Arc<Status>,
        detailed: bool,
        background: &mut BackgroundTasks,
    ) -> WorkerSet {
        let bodies = Arc::new(BodyLimits::new(
            config.max_body_mb << 20,
            config.body_timeout,
        ));
        // Each thread keeps its share.
        let max_idle = config.pool_max_idle.div_ceil(self.workers.len().max(1));
        let idle_timeouts = IdleTimeouts::new(config.stream_idle_timeout, config.sse_heartbeat);
        let cors = Cors::new(&config.cors_origins).map(Arc::new);
        self.worker_set(config, self.tls.clone(), |worker| {
            let upstreams =
                Upstreams::new(self.connector.clone(), max_idle, Arc::clone(&self.metrics));
            let tend = upstreams
                .clone()
                .tend(Arc::clone(&self.current), background.stop());
            worker.spawn(&Tasks::default(), tend);
            let forwarder = Forwarder {
                upstreams,
                timeout: config.upstream_timeout,
                max_retries: config.max_retries,
                idle_timeouts,
            };
            let pipeline = Pipeline {
                current: Arc::clone(&self.current),
                sink: Arc::clone(&self.sink),
                forwarder,
                bodies: Arc::clone(&bodies),
                request_timeout: config.request_timeout,
                cached: Arc::clone(&self.cached),
                hide_ungranted: config.hide_ungranted_models,
                forwarded: config.forwarded_headers.clone().into(),
            };
            Service::Public {
                pipeline: Arc::new(pipeline),
                status: Arc::clone(status),
                detailed,
                cors: cors.clone(),
            }
        })
    }

    fn worker_set(
        &self,
        config: &Config,
        tls: Option<Arc<ServerConfig>>,
        service: impl FnMut(&Worker) -> Service,
    ) -> WorkerSet {
        WorkerSet {
            workers: Arc::clone(&self.workers),
            services: self.workers.iter().map(service).collect(),
            tls,
            header_timeout: config.header_timeout,
        }
    }

    /// Starts what runs beside the request path.
    fn start(self, config: &Config, background: &mut BackgroundTasks) {
        let Self {
            source,
            probe_client,
            metrics,
            sink,
            current,
            cached: _,
            connector,
            workers: _,
            certificate,
            tls: _,
            traces,
            boot_id,
        } = self;
        let stop = background.stop();
        if let Some(certificate) = certificate {
            background.spawn(
                "the certificate's follower",
                certificate.follow(stop.clone()),
            );
        }
        let resolver = Resolver::new(
            connector.names(),
            Arc::clone(&current),
            Arc::clone(&metrics),
        );
        background.spawn("the resolver", resolver.run(stop.clone()));
        let prober = Prober {
            client: probe_client,
            current: Arc::clone(&current),
            every: config.health_interval,
            timeout: config.health_timeout,
        };
        background.spawn("the prober", prober.run(stop.clone()));
        if let Some(traces) = traces {
            background.spawn("the trace exporter", traces.run(stop.clone()));
        }
        match source {
            SnapshotSource::File { watcher, hang_up } => {
                background.spawn("the file's watcher", watcher.run(hang_up, stop));
            }
            SnapshotSource::Control { client, receiver } => {
                let tasks = ControlPlaneTasks {
                    client,
                    receiver,
                    metrics,
                    sink,
                    current,
                    boot_id,
                };
                tasks.start(config, background);
            }
        }
    }
}
