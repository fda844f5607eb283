//! Flags and environment: the only place that reads either.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{BoolishValueParser, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use fastllm_contract::{PolicyKind, Secret};
use fastllm_process::address::parse_host;
use fastllm_process::logging::LogFormat;
use url::Url;

use crate::control_plane::ControlUrl;
use crate::http::CorsOrigin;
use crate::http::ForwardedHeader;
use crate::snapshot::ConfigFile;
use crate::telemetry::{MetadataLabels, OtelProtocol};

/// Everything that a gateway is told at its start. Its `Debug` output holds no
/// secret.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Address to listen on: IPv4, IPv6 or `localhost`
    #[arg(long, env = "FASTLLM_HOST", default_value = "127.0.0.1", value_parser = parse_host)]
    pub host: IpAddr,
    /// Port for clients
    #[arg(short, long, env = "FASTLLM_PORT", default_value_t = 4000)]
    pub port: u16,
    /// Port of its own for /health, /metrics, /livez and /readyz
    #[arg(long, env = "FASTLLM_STATUS_PORT")]
    pub status_port: Option<u16>,
    /// Configuration file of a gateway without a control plane
    #[arg(short, long, env = "FASTLLM_CONFIG")]
    pub config: Option<PathBuf>,
    /// Key that may use every model, only with --config
    #[arg(
        long,
        env = "FASTLLM_MASTER_KEY",
        hide_env_values = true,
        value_parser = secret
    )]
    pub master_key: Option<Secret>,
    /// Say what is wrong with a configuration file, and end: 0 without errors
    #[arg(long, value_name = "FILE")]
    pub check_config: Option<PathBuf>,
    /// Address of the control plane, with or without /snapshot
    #[arg(
        long,
        env = "FASTLLM_CONTROL_URL",
        hide_env_values = true,
        value_parser = Unrepeated(control_url)
    )]
    pub control_url: Option<ControlUrl>,
    /// Shared secret of both planes
    #[arg(
        long,
        env = "FASTLLM_PROXY_TOKEN",
        hide_env_values = true,
        value_parser = secret
    )]
    pub proxy_token: Option<Secret>,
    /// Where the last-known-good snapshot is kept
    #[arg(
        long,
        env = "FASTLLM_SNAPSHOT_CACHE",
        default_value = "/var/lib/fastllm/snapshot.json"
    )]
    pub snapshot_cache: PathBuf,
    /// Seconds between polls where control does not hold a request open, or
    /// between looks at the configuration file (0: only after SIGHUP)
    #[arg(long, env = "FASTLLM_CONFIG_POLL", default_value = "5", value_parser = seconds)]
    pub config_poll: Duration,
    /// Largest request body, in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub max_body_mb: u64,
    /// Seconds that a client may take between two parts of its request body
    #[arg(long, env = "FASTLLM_BODY_TIMEOUT", default_value = "30", value_parser = positive_seconds)]
    pub body_timeout: Duration,
    /// Seconds that a client may take for the head of a request, idle time
    /// before it included
    #[arg(long, env = "FASTLLM_HEADER_TIMEOUT", default_value = "75", value_parser = positive_seconds)]
    pub header_timeout: Duration,
    /// Connections that a port serves at one time; further ones wait
    #[arg(long, env = "FASTLLM_MAX_CONNECTIONS", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub max_connections: u32,
    /// Origins whose pages may use the gateway from a browser, or `*`; repeated
    /// or separated by commas
    #[arg(
        long = "cors-origin",
        env = "FASTLLM_CORS_ORIGIN",
        value_delimiter = ','
    )]
    pub cors_origins: Vec<CorsOrigin>,
    /// Further headers of clients that upstreams see, beside accept, user-agent,
    /// openai-beta and trace context; repeated, or separated by commas
    #[arg(
        long = "forward-header",
        env = "FASTLLM_FORWARD_HEADER",
        value_delimiter = ','
    )]
    pub forwarded_headers: Vec<ForwardedHeader>,
    /// A model that exists and is not granted answers like one that does not
    #[arg(long, env = "FASTLLM_HIDE_UNGRANTED_MODELS", value_parser = BoolishValueParser::new())]
    pub hide_ungranted_models: bool,
    /// Threads that serve requests; one per core when not given
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Seconds that running answers have to finish after SIGTERM
    #[arg(long, env = "FASTLLM_SHUTDOWN_GRACE", default_value = "25", value_parser = seconds)]
    pub shutdown_grace: Duration,
    /// Seconds between turning unready and closing the listeners
    #[arg(long, env = "FASTLLM_SHUTDOWN_DELAY", default_value = "0", value_parser = seconds)]
    pub shutdown_delay: Duration,
    /// How a backend is chosen for models that name no policy: cache-affinity,
    /// least-loaded, round-robin or lowest-latency
    #[arg(long, default_value_t = PolicyKind::CacheAffinity)]
    pub policy: PolicyKind,
    /// Seconds to wait for an upstream's response headers
    #[arg(long, default_value = "120", value_parser = positive_seconds)]
    pub upstream_timeout: Duration,
    /// Seconds from the head of a request to the end of its answer; no limit
    /// when not given
    #[arg(long, env = "FASTLLM_REQUEST_TIMEOUT", value_parser = positive_seconds)]
    pub request_timeout: Option<Duration>,
    /// Seconds that an upstream may be silent in the middle of an answer
    #[arg(long, env = "FASTLLM_STREAM_IDLE_TIMEOUT", default_value = "300", value_parser = positive_seconds)]
    pub stream_idle_timeout: Duration,
    /// Seconds after which the client of a silent stream gets a comment, so
    /// that nobody in between takes the connection for dead; off when not given
    #[arg(long, env = "FASTLLM_SSE_HEARTBEAT", value_parser = positive_seconds)]
    pub sse_heartbeat: Option<Duration>,
    /// Further attempts per model before the first byte is sent
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub max_retries: u32,
    /// Idle connections kept per upstream address
    #[arg(long, default_value_t = 256)]
    pub pool_max_idle: usize,
    /// Answers that are kept to be given again, at most (0: none); for models
    /// with `cache_ttl_seconds`
    #[arg(long, env = "FASTLLM_CACHE_MAX_ENTRIES", default_value_t = 4096)]
    pub cache_max_entries: u32,
    /// Bytes of them, at most (0: none)
    #[arg(long, env = "FASTLLM_CACHE_MAX_BYTES", default_value_t = 64 << 20)]
    pub cache_max_bytes: u64,
    /// Who may be given an answer again: the principal that asked for it, or all
    /// that may use its model
    #[arg(
        long,
        env = "FASTLLM_CACHE_SCOPE",
        value_enum,
        default_value_t = CacheSharing::Principal
    )]
    pub cache_scope: CacheSharing,
    /// Seconds between two probes of a backend
    #[arg(long, default_value = "10", value_parser = positive_seconds)]
    pub health_interval: Duration,
    /// Seconds that a probe may take, its body included
    #[arg(long, default_value = "3", value_parser = positive_seconds)]
    pub health_timeout: Duration,
    /// Seconds between two reports to the control plane
    #[arg(
        long,
        env = "FASTLLM_HEALTH_REPORT_INTERVAL",
        default_value = "10",
        value_parser = positive_seconds
    )]
    pub health_report_interval: Duration,
    /// Seconds between two times that the shares of limits and budgets are
    /// reconciled with other gateways (0: never; each takes its equal part)
    #[arg(
        long,
        env = "FASTLLM_RATE_LIMIT_RECONCILE_INTERVAL",
        default_value = "5",
        value_parser = seconds
    )]
    pub rate_limit_reconcile_interval: Duration,
    /// Members of `metadata` that label the usage metrics, separated by commas
    #[arg(long, env = "FASTLLM_METADATA_LABELS", default_value = "")]
    pub metadata_labels: MetadataLabels,
    /// File for usage that control does not take in time; best on a disk that
    /// outlives the process, for example /var/lib/fastllm/usage.spill
    #[arg(long, env = "FASTLLM_USAGE_SPILL")]
    pub usage_spill: Option<PathBuf>,
    /// The most that this file may take, in MiB
    #[arg(long, env = "FASTLLM_USAGE_SPILL_MAX_MB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub usage_spill_max_mb: u64,
    /// PEM certificates to trust besides the system's
    #[arg(long, env = "FASTLLM_CA_BUNDLE")]
    pub ca_bundle: Option<PathBuf>,
    /// PEM certificate chain to show to clients; needs --gateway-tls-key
    #[arg(long, env = "FASTLLM_GATEWAY_TLS_CERT", requires = "gateway_tls_key")]
    pub gateway_tls_cert: Option<PathBuf>,
    /// PEM key of that certificate
    #[arg(long, env = "FASTLLM_GATEWAY_TLS_KEY", requires = "gateway_tls_cert")]
    pub gateway_tls_key: Option<PathBuf>,
    /// Log filter, for example `info,fastllm_gateway=debug`
    #[arg(long, env = "FASTLLM_LOG", default_value = "info")]
    pub log: String,
    /// Log format
    #[arg(long, env = "FASTLLM_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Address of an OpenTelemetry collector, for example
    /// `http://collector:4317`; nothing is traced without it
    #[arg(long, env = "FASTLLM_OTEL_ENDPOINT", hide_env_values = true, value_parser = Unrepeated(collector))]
    pub otel_endpoint: Option<Url>,
    /// What the collector speaks: OTLP over gRPC (by convention on port 4317)
    /// or as HTTP posts (4318)
    #[arg(
        long,
        env = "FASTLLM_OTEL_PROTOCOL",
        value_enum,
        default_value_t = OtelProtocol::Grpc
    )]
    pub otel_protocol: OtelProtocol,
    /// Of the requests that no caller decided about, one in so many is traced
    #[arg(long, env = "FASTLLM_OTEL_SAMPLE_ONE_IN", default_value = "100")]
    pub otel_sample_one_in: NonZeroU64,
    /// What traces call this service
    #[arg(
        long,
        env = "FASTLLM_OTEL_SERVICE_NAME",
        default_value = "fastllm-proxy"
    )]
    pub otel_service_name: String,
    /// Headers for the collector: `name=value,name=value`, values
    /// percent-encoded
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", hide_env_values = true, value_parser = StringValueParser::new().map(Secret::new))]
    pub otel_headers: Option<Secret>,
    /// What traces tell of this process, in the same form
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES")]
    pub otel_resource: Option<String>,
    /// Name of this gateway in reports; the pod's name when not given
    #[arg(long, env = "HOSTNAME", default_value_t = unnamed())]
    pub replica: String,
}

/// Who may be given an answer again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CacheSharing {
    /// The principal that asked for it.
    Principal,
    /// Every principal that may use its model.
    Shared,
}

/// Where a gateway is told what to serve.
#[derive(Debug)]
pub(crate) enum Origin<'c> {
    /// By a control plane.
    Control {
        url: &'c ControlUrl,
        token: &'c Secret,
    },
    /// By a file.
    File(ConfigFile),
}

/// Flags that do not say where to be told what to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// Nowhere.
    #[error(
        "what shall be served? Either --config FILE (FASTLLM_CONFIG), or --control-url URL \
         (FASTLLM_CONTROL_URL) with --proxy-token (FASTLLM_PROXY_TOKEN)"
    )]
    Missing,
    /// Two places at once.
    #[error(
        "--config (FASTLLM_CONFIG) excludes --control-url (FASTLLM_CONTROL_URL) and \
         --proxy-token (FASTLLM_PROXY_TOKEN)"
    )]
    Both,
    /// Half of what a control plane takes.
    #[error(
        "--control-url (FASTLLM_CONTROL_URL) and --proxy-token (FASTLLM_PROXY_TOKEN) go together"
    )]
    Half,
    /// A key that control would not know.
    #[error("--master-key (FASTLLM_MASTER_KEY) is only for a gateway with --config")]
    MasterKey,
    /// Polling without a pause.
    #[error("--config-poll 0 is only for a gateway with --config: expected at least 1 second")]
    Poll,
}

impl Config {
    /// The file, with what the flags say beside it.
    pub(crate) fn file(&self, path: &Path) -> ConfigFile {
        ConfigFile {
            path: path.to_owned(),
            master_key: self.master_key.clone(),
            policy: self.policy,
        }
    }

    /// Where to be told what to serve.
    pub(crate) fn origin(&self) -> Result<Origin<'_>, OriginError> {
        match (&self.config, &self.control_url, &self.proxy_token) {
            (Some(path), None, None) => Ok(Origin::File(self.file(path))),
            (Some(_), _, _) => Err(OriginError::Both),
            (None, None, None) => Err(OriginError::Missing),
            (None, Some(_), Some(_)) if self.master_key.is_some() => Err(OriginError::MasterKey),
            (None, Some(_), Some(_)) if self.config_poll.is_zero() => Err(OriginError::Poll),
            (None, Some(url), Some(token)) => Ok(Origin::Control { url, token }),
            (None, _, _) => Err(OriginError::Half),
        }
    }
}

/// The value of a variable that a configuration file refers to.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the configuration module"
)]
pub(crate) fn environment_variable(name: &str) -> Option<String> {
    // A name with either of them is none, and asking for it panics.
    if name.is_empty() || name.contains(['=', '\0']) {
        return None;
    }
    std::env::var(name).ok()
}

fn unnamed() -> String {
    format!("unknown-{}", std::process::id())
}

/// Reads a value that may hold a password: unlike clap's own parsers, its errors
/// do not repeat what was given.
#[derive(Clone)]
struct Unrepeated<T>(fn(&str) -> Result<T, &'static str>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Unrepeated<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        flag: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let parsed = value.to_str().ok_or("expected UTF-8").and_then(self.0);
        parsed.map_err(|reason| {
            let flag = flag.map(ToString::to_string).unwrap_or_default();
            let message = format!("the value of {flag} is not valid: {reason}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

fn control_url(text: &str) -> Result<ControlUrl, &'static str> {
    let url = Url::parse(text).map_err(|_| "expected an http or https address")?;
    ControlUrl::new(url)
}

fn collector(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "expected an http or https address")?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("expected an http or https address");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the address must not hold credentials; use --otel-headers");
    }
    Ok(url)
}

fn secret(text: &str) -> Result<Secret, String> {
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    Ok(Secret::new(text))
}

/// Longest interval that is accepted: a day.
const MOST_SECONDS: u64 = 86_400;

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| *seconds <= MOST_SECONDS)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("expected whole seconds, at most {MOST_SECONDS}"))
}

fn positive_seconds(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    if duration.is_zero() {
        return Err("expected at least 1 second".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests;
