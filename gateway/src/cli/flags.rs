//! Flags and environment variables, and the configuration that they make.

mod forwarding;

pub use forwarding::ForwardingFlags;

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{BoolishValueParser, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use fastllm_contract::{PolicyKind, Secret};
use fastllm_process::address::parse_host;
use fastllm_process::logging::LogFormat;
use fastllm_process::upstream_addresses::{UpstreamAddresses, UpstreamRange};
use url::Url;

use crate::app::{CertificateFiles, Config, ShutdownConfig, SourceConfig};
use crate::control_plane::{ControlUrl, SpillConfig};
use crate::http::{BodyTimeouts, CorsOrigin};
use crate::snapshot::ConfigFile;
use crate::telemetry::{MetadataLabels, OtelProtocol, TracingConfig};
use crate::{cache, control_plane, forward, pipeline, serve, upstream};

/// The flags of a gateway, each with its environment variable. The `Debug`
/// output holds no secret.
#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    /// Address to listen on: IPv4, IPv6 or `localhost`
    #[arg(long, env = "FASTLLM_HOST", default_value = "127.0.0.1", value_parser = parse_host)]
    pub host: IpAddr,
    /// Port for clients
    #[arg(short, long, env = "FASTLLM_PORT", default_value_t = 4000)]
    pub port: u16,
    /// Separate port for /health, /metrics, /livez and /readyz
    #[arg(long, env = "FASTLLM_STATUS_PORT")]
    pub status_port: Option<u16>,
    /// Configuration file to serve instead of a control plane
    #[arg(short, long, env = "FASTLLM_CONFIG")]
    pub config: Option<PathBuf>,
    /// Key that grants access to every model; only with --config
    #[arg(
        long,
        env = "FASTLLM_MASTER_KEY",
        hide_env_values = true,
        value_parser = secret
    )]
    pub master_key: Option<Secret>,
    /// Validate a configuration file and exit: 0 without errors, 2 otherwise
    #[arg(long, value_name = "FILE")]
    pub check_config: Option<PathBuf>,
    /// URL of the control plane, with or without /snapshot
    #[arg(
        long,
        env = "FASTLLM_CONTROL_URL",
        hide_env_values = true,
        value_parser = Unrepeated(control_url)
    )]
    pub control_url: Option<ControlUrl>,
    /// Secret shared with the control plane
    #[arg(
        long,
        env = "FASTLLM_PROXY_TOKEN",
        hide_env_values = true,
        value_parser = secret
    )]
    pub proxy_token: Option<Secret>,
    /// File that holds the last known good snapshot
    #[arg(
        long,
        env = "FASTLLM_SNAPSHOT_CACHE",
        default_value = "/var/lib/fastllm/snapshot.json"
    )]
    pub snapshot_cache: PathBuf,
    /// Seconds between polls of a control plane without long polling, or between
    /// checks of the configuration file (0: only on SIGHUP)
    #[arg(long, env = "FASTLLM_CONFIG_POLL", default_value = "5", value_parser = seconds)]
    pub config_poll: Duration,
    /// Maximum size of a request body, in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub max_body_mb: u64,
    /// Timeout in seconds between two parts of a request body
    #[arg(long, env = "FASTLLM_BODY_TIMEOUT", default_value = "30", value_parser = positive_seconds)]
    pub body_timeout: Duration,
    /// Timeout in seconds for a whole request body
    #[arg(long, env = "FASTLLM_BODY_TOTAL_TIMEOUT", default_value = "300", value_parser = positive_seconds)]
    pub body_total_timeout: Duration,
    /// Timeout in seconds for a client to receive each part of a response, at most
    /// 64 KiB
    #[arg(long, env = "FASTLLM_SEND_TIMEOUT", default_value = "300", value_parser = positive_seconds)]
    pub send_timeout: Duration,
    /// Timeout in seconds for the head of a request, including the idle time
    /// before it
    #[arg(long, env = "FASTLLM_HEADER_TIMEOUT", default_value = "75", value_parser = positive_seconds)]
    pub header_timeout: Duration,
    /// Maximum number of concurrent connections per port; further ones wait
    #[arg(long, env = "FASTLLM_MAX_CONNECTIONS", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub max_connections: u32,
    /// Origins whose pages may use the gateway from a browser (CORS), or `*`; may
    /// be repeated or separated by commas
    #[arg(
        long = "cors-origin",
        env = "FASTLLM_CORS_ORIGIN",
        value_delimiter = ','
    )]
    pub cors_origins: Vec<CorsOrigin>,
    /// What is forwarded besides the usual.
    #[command(flatten)]
    pub forwarding: ForwardingFlags,
    /// Respond to a model that the caller has no grant for as if it did not exist
    #[arg(long, env = "FASTLLM_HIDE_UNGRANTED_MODELS", value_parser = BoolishValueParser::new())]
    pub hide_ungranted_models: bool,
    /// Number of worker threads [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Seconds that running responses have to finish after SIGTERM
    #[arg(long, env = "FASTLLM_SHUTDOWN_GRACE", default_value = "25", value_parser = seconds)]
    pub shutdown_grace: Duration,
    /// Seconds between turning unready and closing the listeners
    #[arg(long, env = "FASTLLM_SHUTDOWN_DELAY", default_value = "0", value_parser = seconds)]
    pub shutdown_delay: Duration,
    /// Load balancing policy of models that name none: cache-affinity,
    /// least-loaded, round-robin or lowest-latency
    #[arg(long, default_value_t = PolicyKind::CacheAffinity)]
    pub policy: PolicyKind,
    /// Timeout in seconds for an upstream's response headers and the first event of a
    /// stream
    #[arg(long, default_value = "120", value_parser = positive_seconds)]
    pub upstream_timeout: Duration,
    /// Timeout in seconds from the head of a request to the end of its response
    /// [default: no timeout]
    #[arg(long, env = "FASTLLM_REQUEST_TIMEOUT", value_parser = positive_seconds)]
    pub request_timeout: Option<Duration>,
    /// Idle timeout in seconds of an upstream in the middle of a response
    #[arg(long, env = "FASTLLM_STREAM_IDLE_TIMEOUT", default_value = "300", value_parser = positive_seconds)]
    pub stream_idle_timeout: Duration,
    /// Seconds between comments sent on an idle stream, so that proxies keep the
    /// connection open [default: off]
    #[arg(long, env = "FASTLLM_SSE_HEARTBEAT", value_parser = positive_seconds)]
    pub sse_heartbeat: Option<Duration>,
    /// Maximum size in bytes of JSON responses that are held until they are complete,
    /// so that another backend can replace one that ends early (0 holds none)
    #[arg(long, env = "FASTLLM_RESPONSE_BUFFER_BYTES", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u64).range(0..=64 << 20))]
    pub response_buffer_bytes: u64,
    /// Maximum number of retries per model before the first byte is sent
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub max_retries: u32,
    /// Maximum number of idle connections per upstream address
    #[arg(long, default_value_t = 256)]
    pub pool_max_idle: usize,
    /// Ranges of addresses that upstreams may have in addition, such as
    /// 169.254.10.0/24: link-local addresses and those of cloud metadata are refused
    /// otherwise; may be repeated or separated by commas
    #[arg(
        long = "allow-upstream-cidr",
        env = "FASTLLM_ALLOW_UPSTREAM_CIDR",
        value_delimiter = ','
    )]
    pub allowed_upstream_ranges: Vec<UpstreamRange>,
    /// Maximum number of cached responses (0 disables the cache); applies to
    /// models with `cache_ttl_seconds`
    #[arg(long, env = "FASTLLM_CACHE_MAX_ENTRIES", default_value_t = 4096)]
    pub cache_max_entries: u32,
    /// Maximum size of the cached responses, in bytes (0 disables the cache)
    #[arg(long, env = "FASTLLM_CACHE_MAX_BYTES", default_value_t = 64 << 20)]
    pub cache_max_bytes: u64,
    /// Which callers share cached responses
    #[arg(
        long,
        env = "FASTLLM_CACHE_SCOPE",
        value_enum,
        default_value_t = CacheSharing::Principal
    )]
    pub cache_scope: CacheSharing,
    /// Seconds between two health probes of a backend
    #[arg(long, default_value = "10", value_parser = positive_seconds)]
    pub health_interval: Duration,
    /// Timeout in seconds of a health probe, including the response body
    #[arg(long, default_value = "3", value_parser = positive_seconds)]
    pub health_timeout: Duration,
    /// Seconds between two health reports to the control plane
    #[arg(
        long,
        env = "FASTLLM_HEALTH_REPORT_INTERVAL",
        default_value = "10",
        value_parser = positive_seconds
    )]
    pub health_report_interval: Duration,
    /// Seconds between two reconciliations of limits and budgets with the other
    /// gateways (0: never; each gateway uses an equal share)
    #[arg(
        long,
        env = "FASTLLM_RATE_LIMIT_RECONCILE_INTERVAL",
        default_value = "5",
        value_parser = seconds
    )]
    pub rate_limit_reconcile_interval: Duration,
    /// Members of `metadata` that become labels of the usage metrics, separated by
    /// commas
    #[arg(long, env = "FASTLLM_METADATA_LABELS", default_value = "")]
    pub metadata_labels: MetadataLabels,
    /// File for usage that the control plane does not accept in time; should
    /// survive the process, for example /var/lib/fastllm/usage.spill
    #[arg(long, env = "FASTLLM_USAGE_SPILL")]
    pub usage_spill: Option<PathBuf>,
    /// Maximum size of the usage spill file, in MiB
    #[arg(long, env = "FASTLLM_USAGE_SPILL_MAX_MB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub usage_spill_max_mb: u64,
    /// PEM file with certificates to trust in addition to the system's
    #[arg(long, env = "FASTLLM_CA_BUNDLE")]
    pub ca_bundle: Option<PathBuf>,
    /// PEM certificate chain of the listener; requires --gateway-tls-key
    #[arg(long, env = "FASTLLM_GATEWAY_TLS_CERT", requires = "gateway_tls_key")]
    pub gateway_tls_cert: Option<PathBuf>,
    /// PEM private key of the listener
    #[arg(long, env = "FASTLLM_GATEWAY_TLS_KEY", requires = "gateway_tls_cert")]
    pub gateway_tls_key: Option<PathBuf>,
    /// Log filter, for example `info,fastllm_gateway=debug`
    #[arg(long, env = "FASTLLM_LOG", default_value = "info")]
    pub log: String,
    /// Log format
    #[arg(long, env = "FASTLLM_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// URL of an OpenTelemetry collector, for example `http://collector:4317`
    /// [default: tracing is off]
    #[arg(long, env = "FASTLLM_OTEL_ENDPOINT", hide_env_values = true, value_parser = Unrepeated(collector))]
    pub otel_endpoint: Option<Url>,
    /// Protocol of the collector: OTLP over gRPC (usually port 4317) or over HTTP
    /// (usually port 4318)
    #[arg(
        long,
        env = "FASTLLM_OTEL_PROTOCOL",
        value_enum,
        default_value_t = OtelProtocol::Grpc
    )]
    pub otel_protocol: OtelProtocol,
    /// Trace one in this many of the requests that have no sampling decision
    #[arg(long, env = "FASTLLM_OTEL_SAMPLE_ONE_IN", default_value = "100")]
    pub otel_sample_one_in: NonZeroU64,
    /// Service name in traces
    #[arg(
        long,
        env = "FASTLLM_OTEL_SERVICE_NAME",
        default_value = "fastllm-proxy"
    )]
    pub otel_service_name: String,
    /// Headers sent to the collector: `name=value,name=value` with
    /// percent-encoded values
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", hide_env_values = true, value_parser = StringValueParser::new().map(Secret::new))]
    pub otel_headers: Option<Secret>,
    /// Resource attributes in traces, in the same format
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES")]
    pub otel_resource: Option<String>,
    /// Name of this gateway in reports; must be unique among gateways
    #[arg(long, env = "HOSTNAME", default_value_t = unnamed())]
    pub replica: String,
}

/// Which callers share cached responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CacheSharing {
    /// A cached response is returned only to the principal that caused it.
    Principal,
    /// Every principal that may use the model gets it.
    Shared,
}

/// Flags that do not name exactly one source of snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No source.
    #[error(
        "nothing to serve: set --config FILE (FASTLLM_CONFIG), or --control-url URL \
         (FASTLLM_CONTROL_URL) with --proxy-token (FASTLLM_PROXY_TOKEN)"
    )]
    Missing,
    /// Two sources.
    #[error(
        "--config (FASTLLM_CONFIG) excludes --control-url (FASTLLM_CONTROL_URL) and \
         --proxy-token (FASTLLM_PROXY_TOKEN)"
    )]
    Both,
    /// The address or the token of the control plane is missing.
    #[error(
        "--control-url (FASTLLM_CONTROL_URL) and --proxy-token (FASTLLM_PROXY_TOKEN) go together"
    )]
    Half,
    /// A master key, which the control plane does not know.
    #[error("--master-key (FASTLLM_MASTER_KEY) is only for a gateway with --config")]
    MasterKey,
    /// Polling without a pause.
    #[error("--config-poll 0 is only for a gateway with --config: expected at least 1 second")]
    Poll,
}

impl Flags {
    /// The configuration file at `path`, with the flags that apply to it.
    pub(crate) fn file(&self, path: &Path) -> ConfigFile {
        ConfigFile {
            path: path.to_owned(),
            master_key: self.master_key.clone(),
            policy: self.policy,
            max_body_bytes: self.max_body_mb << 20,
        }
    }

    /// The configuration of each component.
    ///
    /// # Errors
    /// The flags do not name exactly one source of snapshots.
    pub fn config(self) -> Result<Config, SourceError> {
        let (body_timeouts, shutdown) = (self.body_timeouts(), self.shutdown());
        Ok(Config {
            source: self.source()?,
            address: SocketAddr::new(self.host, self.port),
            status_address: self
                .status_port
                .map(|port| SocketAddr::new(self.host, port)),
            serve: serve::Config {
                max_connections: self.max_connections,
                header_timeout: self.header_timeout,
                send_timeout: self.send_timeout,
                cors_origins: self.cors_origins,
            },
            pipeline: pipeline::Config {
                max_body_bytes: self.max_body_mb << 20,
                body_timeouts,
                request_timeout: self.request_timeout,
                hide_ungranted: self.hide_ungranted_models,
                forwarded: self.forwarding.config(),
            },
            cache: cache::Config {
                max_entries: self.cache_max_entries.into(),
                max_bytes: self.cache_max_bytes,
                shared: self.cache_scope == CacheSharing::Shared,
            },
            forward: forward::Config {
                timeout: self.upstream_timeout,
                max_retries: self.max_retries,
                stream_idle_timeout: self.stream_idle_timeout,
                sse_heartbeat: self.sse_heartbeat,
                response_buffer_bytes: self.response_buffer_bytes,
            },
            upstream: upstream::Config {
                max_idle: self.pool_max_idle,
                addresses: Arc::new(UpstreamAddresses::allowing(self.allowed_upstream_ranges)),
            },
            probe: upstream::ProbeConfig {
                interval: self.health_interval,
                timeout: self.health_timeout,
            },
            tracing: self.otel_endpoint.map(|endpoint| TracingConfig {
                endpoint,
                protocol: self.otel_protocol,
                headers: self.otel_headers,
                sample_one_in: self.otel_sample_one_in,
                service_name: self.otel_service_name,
                instance_id: self.replica,
                resource_attributes: self.otel_resource.unwrap_or_default(),
            }),
            metadata_labels: self.metadata_labels,
            log_format: self.log_format,
            policy: self.policy,
            workers: self.workers,
            ca_bundle: self.ca_bundle,
            certificate: self
                .gateway_tls_cert
                .zip(self.gateway_tls_key)
                .map(|(chain, key)| CertificateFiles { chain, key }),
            shutdown,
        })
    }

    fn body_timeouts(&self) -> BodyTimeouts {
        BodyTimeouts {
            part: self.body_timeout,
            whole: self.body_total_timeout,
        }
    }

    fn shutdown(&self) -> ShutdownConfig {
        ShutdownConfig {
            delay: self.shutdown_delay,
            grace: self.shutdown_grace,
        }
    }

    fn source(&self) -> Result<SourceConfig, SourceError> {
        match (&self.config, &self.control_url, &self.proxy_token) {
            (Some(path), None, None) => Ok(SourceConfig::File {
                file: self.file(path),
                poll: self.config_poll,
            }),
            (Some(_), _, _) => Err(SourceError::Both),
            (None, None, None) => Err(SourceError::Missing),
            (None, Some(_), Some(_)) if self.master_key.is_some() => Err(SourceError::MasterKey),
            (None, Some(_), Some(_)) if self.config_poll.is_zero() => Err(SourceError::Poll),
            (None, Some(url), Some(token)) => {
                Ok(SourceConfig::ControlPlane(self.control_plane(url, token)))
            }
            (None, _, _) => Err(SourceError::Half),
        }
    }

    fn control_plane(&self, url: &ControlUrl, token: &Secret) -> control_plane::Config {
        control_plane::Config {
            url: url.clone(),
            token: token.clone(),
            replica: self.replica.clone(),
            snapshot_cache: self.snapshot_cache.clone(),
            snapshot_poll: self.config_poll,
            health_report_interval: self.health_report_interval,
            reconcile_interval: self.rate_limit_reconcile_interval,
            usage_spill: self.usage_spill.clone().map(|path| SpillConfig {
                path,
                max_bytes: self.usage_spill_max_mb << 20,
            }),
        }
    }
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
const MAX_SECONDS: u64 = 86_400;

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| *seconds <= MAX_SECONDS)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("expected whole seconds, at most {MAX_SECONDS}"))
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
