use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fastllm_contract::PolicyKind;
use fastllm_process::logging::LogFormat;

use crate::snapshot::ConfigFile;
use crate::telemetry::{MetadataLabels, TracingConfig};
use crate::{cache, control_plane, forward, pipeline, serve, upstream};

/// The configuration of a gateway, by component. Its `Debug` output holds no
/// secret.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address for clients.
    pub(crate) address: SocketAddr,
    /// The address for status requests, where it is a separate one.
    pub(crate) status_address: Option<SocketAddr>,
    pub(crate) source: SourceConfig,
    pub(crate) serve: serve::Config,
    pub(crate) pipeline: pipeline::Config,
    pub(crate) cache: cache::Config,
    pub(crate) forward: forward::Config,
    pub(crate) upstream: upstream::Config,
    pub(crate) probe: upstream::ProbeConfig,
    /// Nothing is traced without it.
    pub(crate) tracing: Option<TracingConfig>,
    pub(crate) metadata_labels: MetadataLabels,
    pub(crate) log_format: LogFormat,
    /// The policy of models that name none.
    pub(crate) policy: PolicyKind,
    /// Threads that serve requests; one per core where it is not set.
    pub(crate) workers: Option<u16>,
    /// PEM certificates to trust besides the system's.
    pub(crate) ca_bundle: Option<PathBuf>,
    pub(crate) certificate: Option<CertificateFiles>,
    pub(crate) shutdown: ShutdownConfig,
}

/// Where the gateway gets its snapshots from.
#[derive(Debug, Clone)]
pub(crate) enum SourceConfig {
    ControlPlane(control_plane::Config),
    File {
        file: ConfigFile,
        /// Time between two looks at the file; zero: only after SIGHUP.
        poll: Duration,
    },
}

/// The PEM files of the certificate that clients see.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFiles {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
}

/// How the gateway shuts down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShutdownConfig {
    /// Time between turning unready and closing the listeners.
    pub(crate) delay: Duration,
    /// Time that running responses have to finish.
    pub(crate) grace: Duration,
}
