//! The composition root: builds the components from their configurations and
//! ties them together.

mod config;
mod shutdown;

pub use config::Config;
pub(crate) use config::{CertificateFiles, ShutdownConfig, SourceConfig};

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::available_parallelism;

use fastllm_engine::Tuning;
use fastllm_process::accept::ListenError;
use fastllm_process::signals;
use fastllm_process::tls::{ServerCertificate, TlsError};
use rustls::ServerConfig;
use shutdown::ShutdownSequence;
use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use crate::cache::CachedResponses;
use crate::control_plane::{
    self, ControlClient, ControlPlaneTasks, UsageQueue, UsageReceiver, usage_queue,
};
use crate::forward::ResponseBuffers;
use crate::http::Cors;
use crate::pipeline::Pipeline;
use crate::request_log::{AccountingConfig, AccountingSink};
use crate::runtime::{BackgroundTasks, Tasks, Worker, Workers};
use crate::serve::{self, Listener, Service, Shutdown, Status, WorkerSet};
use crate::snapshot::{CurrentSnapshot, FileError, Watcher};
use crate::telemetry::{Metrics, Observed, TraceExporter};
use crate::tls;
use crate::upstream::{Connector, Prober, Resolver, Upstreams};

/// Protocols that are offered to clients over TLS.
const CLIENT_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why a gateway does not start, or exits by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Certificates cannot be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The configuration file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A library rejects its settings.
    #[error("cannot set up {what}: {reason}")]
    Setup {
        /// What could not be set up.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// A task that should run until shutdown has ended.
    #[error("{0} has ended unexpectedly")]
    Ended(&'static str),
}

impl Error {
    /// Whether the configuration is at fault, so that a restart would not help.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Tls(_) | Self::File(_) => true,
            Self::Listen(_) | Self::Setup { .. } | Self::Ended(_) => false,
        }
    }
}

/// A gateway whose ports are open, but which does not serve requests yet.
#[derive(Debug)]
pub struct Gateway {
    config: Config,
    public: Listener,
    status: Option<Listener>,
    components: Components,
}

/// What the tasks and threads of a gateway share.
#[derive(Debug)]
struct Components {
    source: SnapshotSource,
    prober: Prober,
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

/// Where snapshots come from, and where usage goes.
#[derive(Debug)]
enum SnapshotSource {
    ControlPlane {
        config: control_plane::Config,
        client: ControlClient,
        receiver: UsageReceiver,
    },
    File {
        watcher: Watcher,
        hang_up: Signal,
    },
}

impl SnapshotSource {
    /// Opens the source, and the queue for usage. A file is read and served.
    fn open(
        config: &SourceConfig,
        tls: &rustls::ClientConfig,
        metrics: &Arc<Metrics>,
        current: &Arc<CurrentSnapshot>,
    ) -> Result<(Self, UsageQueue), Error> {
        match config.clone() {
            SourceConfig::ControlPlane(config) => {
                let client = config
                    .client(tls.clone())
                    .map_err(|error| setup("the control plane's client")(&error))?;
                let (usage, receiver) = usage_queue(metrics);
                let source = Self::ControlPlane {
                    config,
                    client,
                    receiver,
                };
                Ok((source, usage))
            }
            SourceConfig::File { file, poll } => {
                let hang_up = signals::hangup().map_err(|error| setup("signals")(&error))?;
                let (current, metrics) = (Arc::clone(current), Arc::clone(metrics));
                let watcher = Watcher::start(file, current, metrics, poll)?;
                Ok((Self::File { watcher, hang_up }, UsageQueue::disabled()))
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
        let metrics = Metrics::new()
            .and_then(|metrics| metrics.with_labels(&config.metadata_labels))
            .map_err(|error| setup("metrics")(&error))?;
        let metrics = Arc::new(metrics);
        let boot_id = boot_id().map_err(|error| setup("random numbers")(&error))?;
        let tuning = Tuning {
            policy: config.policy,
            ..Tuning::default()
        };
        let certificate = match &config.certificate {
            Some(files) => Some(ServerCertificate::read(&files.chain, &files.key)?),
            None => None,
        };
        let threads = match config.workers {
            Some(workers) => usize::from(workers),
            None => available_parallelism().map_or(1, usize::from),
        };
        let current = Arc::new(CurrentSnapshot::new(Arc::clone(&metrics), tuning));
        let (source, usage) = SnapshotSource::open(&config.source, &tls, &metrics, &current)?;
        let cached = config.cache.build();
        observe(&metrics, &usage, Arc::clone(&cached));
        let tracing = config.tracing.as_ref();
        let tracing = tracing
            .map(|tracing| tracing.build(tls.clone(), &metrics))
            .transpose()
            .map_err(|error| setup("traces")(&error))?;
        let (tracer, exporter) = tracing.unzip();
        let accounting = AccountingConfig {
            metrics: Arc::clone(&metrics),
            usage,
            tracer,
            log_format: config.log_format,
            boot_id: Arc::clone(&boot_id),
        };
        let addresses = Arc::clone(&config.upstream.addresses);
        let prober = config
            .probe
            .build(tls.clone(), Arc::clone(&addresses), Arc::clone(&current));
        Ok(Self {
            source,
            prober: prober.map_err(|error| setup("probes")(&error))?,
            sink: accounting.build(),
            current,
            cached,
            metrics,
            connector: Connector::new(tls, addresses),
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

/// Lets metrics include the state of the usage queue and the cache.
fn observe(metrics: &Metrics, usage: &UsageQueue, cached: Arc<CachedResponses>) {
    let usage_queued = usage.length();
    metrics.observe_with(move || Observed {
        usage_queued: usage_queued(),
        cache: cached.occupancy(),
    });
}

/// A random ID of this start.
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
        let most = config.serve.max_connections;
        let public = Listener::bind(config.address, most)?;
        let status = config
            .status_address
            .map(|address| Listener::bind(address, most))
            .transpose()?;
        Ok(Self {
            config,
            public,
            status,
            components,
        })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.public.address()
    }

    /// The address for status requests, where it is a separate one.
    pub fn status_address(&self) -> Option<SocketAddr> {
        self.status.as_ref().map(Listener::address)
    }

    fn announce(&self) {
        let (control, file) = match &self.config.source {
            SourceConfig::ControlPlane(config) => (Some(&config.url), None),
            SourceConfig::File { file, .. } => (None, Some(file.path.display())),
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            address = %self.address(),
            status_address = self.status_address().map(tracing::field::display),
            control = control.map(tracing::field::display),
            config = file.map(tracing::field::display),
            role = "proxy",
            "listening"
        );
    }

    /// Serves until `shutdown` resolves, then shuts down in order: turn unready,
    /// wait, close the ports, finish running responses, send the last usage.
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
            Arc::clone(&components.metrics),
        ));
        let mut background = BackgroundTasks::default();
        let detailed = status_port.is_none();
        let public_worker_set =
            components.public_worker_set(&config, &status, detailed, &background.stop());
        let (public_shutdown, status_shutdown) = (Shutdown::default(), Shutdown::default());
        let mut listeners = BackgroundTasks::default();
        listeners.spawn(
            "the listener",
            public.run(public_worker_set, public_shutdown.clone()),
        );
        if let Some(port) = status_port {
            let worker_set = components.worker_set(&config.serve, None, |_| {
                Service::Status(Arc::clone(&status))
            });
            listeners.spawn(
                "the status listener",
                port.run(worker_set, status_shutdown.clone()),
            );
        }
        let workers = Arc::clone(&components.workers);
        components.start(&mut background);

        let ended = tokio::select! {
            () = shutdown => None,
            name = background.ended() => Some(name),
            name = listeners.ended() => Some(name),
        };
        status.drain();
        let sequence = ShutdownSequence {
            public_shutdown,
            status_shutdown,
            listeners,
            background,
            workers,
        };
        sequence.run(config.shutdown).await;
        ended.map_or(Ok(()), |name| Err(Error::Ended(name)))
    }
}

impl Components {
    /// The threads that serve clients, each with its own connections to upstreams.
    fn public_worker_set(
        &self,
        config: &Config,
        status: &Arc<Status>,
        detailed: bool,
        stop: &CancellationToken,
    ) -> WorkerSet {
        let bodies = config.pipeline.body_limits();
        let buffers = ResponseBuffers::new(config.forward.response_buffer_bytes);
        let max_idle = config.upstream.max_idle_per_thread(self.workers.len());
        let forwarded = &config.pipeline.forwarded.response_headers;
        let cors = Cors::new(&config.serve.cors_origins, forwarded).map(Arc::new);
        self.worker_set(&config.serve, self.tls.clone(), |worker| {
            let upstreams =
                Upstreams::new(self.connector.clone(), max_idle, Arc::clone(&self.metrics));
            let tend = upstreams
                .clone()
                .tend(Arc::clone(&self.current), stop.clone());
            worker.spawn(&Tasks::default(), tend);
            let pipeline = Pipeline {
                config: config.pipeline.clone(),
                current: Arc::clone(&self.current),
                sink: Arc::clone(&self.sink),
                forwarder: config.forward.build(upstreams, buffers.clone()),
                bodies: Arc::clone(&bodies),
                cached: Arc::clone(&self.cached),
            };
            Service::Public {
                pipeline: Arc::new(pipeline),
                status: Arc::clone(status),
                detailed,
                cors: cors.clone(),
                metrics: Arc::clone(&self.metrics),
            }
        })
    }

    fn worker_set(
        &self,
        config: &serve::Config,
        tls: Option<Arc<ServerConfig>>,
        service: impl FnMut(&Worker) -> Service,
    ) -> WorkerSet {
        WorkerSet {
            workers: Arc::clone(&self.workers),
            services: self.workers.iter().map(service).collect(),
            tls,
            header_timeout: config.header_timeout,
            send_timeout: config.send_timeout,
        }
    }

    /// Starts the tasks that run beside the request path.
    fn start(self, background: &mut BackgroundTasks) {
        let Self {
            source,
            prober,
            metrics,
            sink: _,
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
        background.spawn("the prober", prober.run(stop.clone()));
        if let Some(traces) = traces {
            background.spawn("the trace exporter", traces.run(stop.clone()));
        }
        match source {
            SnapshotSource::File { watcher, hang_up } => {
                background.spawn("the file's watcher", watcher.run(hang_up, stop));
            }
            SnapshotSource::ControlPlane {
                config,
                client,
                receiver,
            } => {
                let tasks = ControlPlaneTasks {
                    client,
                    receiver,
                    metrics,
                    current,
                    boot_id,
                };
                tasks.start(config, background);
            }
        }
    }
}
