use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use fastllm_contract::Secret;
use fastllm_process::address::parse_host;
use fastllm_process::logging::LogFormat;
use ipnet::IpNet;
use sqlx::postgres::PgConnectOptions;

use crate::Error;
use crate::crypto::Vault;
use crate::db::PoolSizes;

/// The flags of the control plane.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// Address to listen on: IPv4, IPv6 or `localhost`.
    #[arg(long, env = "FASTLLM_HOST", default_value = "127.0.0.1", value_parser = parse_host)]
    pub host: IpAddr,
    /// Port of the admin API.
    #[arg(long, default_value_t = 4001)]
    pub admin_port: u16,
    /// Database connection.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// Shared secret of the gateways.
    #[arg(long, env = "FASTLLM_PROXY_TOKEN", hide_env_values = true, value_parser = parse_secret)]
    pub proxy_token: Option<Secret>,
    /// Time in seconds for which a former proxy token is accepted after it was replaced.
    /// It must be longer than the rollout of the gateways. 0 rejects other tokens at once.
    #[arg(long, env = "FASTLLM_PROXY_TOKEN_GRACE", default_value_t = 3600,
          value_parser = clap::value_parser!(u64).range(0..=604_800))]
    pub proxy_token_grace: u64,
    /// Interval in seconds at which the database is checked for changes without a notification.
    #[arg(long, env = "FASTLLM_SNAPSHOT_REBUILD_INTERVAL", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub snapshot_rebuild_interval: u64,
    /// Ranges of addresses of reverse proxies, such as 10.0.0.0/8, whose `X-Forwarded-For`
    /// names the client; may be repeated or separated by commas.
    #[arg(
        long = "trusted-proxy-cidr",
        env = "FASTLLM_TRUSTED_PROXY_CIDR",
        value_delimiter = ','
    )]
    pub trusted_proxies: Vec<IpNet>,
    /// Certificate chain of the admin listener (PEM).
    #[arg(long, env = "FASTLLM_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the admin listener (PEM).
    #[arg(long, env = "FASTLLM_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Log filter directives.
    #[arg(long, env = "FASTLLM_LOG", default_value = "info")]
    pub log: String,
    /// Log format.
    #[arg(long, env = "FASTLLM_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Maximum time in seconds for running requests to finish at shutdown.
    #[arg(long, env = "FASTLLM_SHUTDOWN_GRACE", default_value_t = 25)]
    pub shutdown_grace: u64,
    /// Time in seconds between becoming unready and closing the listener.
    #[arg(long, env = "FASTLLM_SHUTDOWN_DELAY", default_value_t = 0)]
    pub shutdown_delay: u64,
    /// `namespace/name` of the custom resource that manages this process; set
    /// by the operator.
    #[arg(long, env = "FASTLLM_OPERATOR_RESOURCE", hide = true)]
    pub operator_resource: Option<String>,
}

/// Connection to the database.
#[derive(Debug, Clone, Args)]
pub struct DatabaseConfig {
    /// Database URL, `postgres://user:password@host/name`.
    #[arg(long, env = "FASTLLM_DATABASE_URL", hide_env_values = true, value_parser = parse_secret)]
    pub database_url: Option<Secret>,
    /// Maximum number of database connections for gateways and snapshots; one more
    /// is used for LISTEN.
    #[arg(long, env = "FASTLLM_DATABASE_MAX_CONNECTIONS", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_max_connections: u32,
    /// Maximum number of database connections for the admin API, in addition.
    #[arg(long, env = "FASTLLM_DATABASE_ADMIN_CONNECTIONS", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_admin_connections: u32,
    /// Maximum number of database connections for reports, in addition.
    #[arg(long, env = "FASTLLM_DATABASE_REPORT_CONNECTIONS", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_report_connections: u32,
    /// Additional trusted CA certificates (PEM), also for the database.
    #[arg(long, env = "FASTLLM_CA_BUNDLE")]
    pub ca_bundle: Option<PathBuf>,
}

/// Commands that run instead of the server.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Set the password of a user and grant administrative access.
    SetPassword(SetPassword),
    /// Write the OpenAPI document of the admin API to standard output.
    Openapi,
}

/// Flags of `set-password`.
#[derive(Debug, Clone, Args)]
pub struct SetPassword {
    /// Name of the user; created if it does not exist.
    #[arg(long)]
    pub name: String,
    /// Password; prefer the environment variable, since flags are visible to other processes.
    #[arg(long, env = "FASTLLM_BOOTSTRAP_PASSWORD", hide_env_values = true, value_parser = parse_secret)]
    pub password: Secret,
    /// Do not replace an existing password.
    #[arg(long)]
    pub create_only: bool,
    /// Database connection.
    #[command(flatten)]
    pub database: DatabaseConfig,
}

#[expect(clippy::unnecessary_wraps, reason = "clap requires this signature")]
fn parse_secret(text: &str) -> Result<Secret, String> {
    Ok(Secret::new(text))
}

impl Config {
    /// The listen address of the admin API.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.admin_port)
    }

    /// The token that gateways present.
    pub(crate) fn token(&self) -> Result<Secret, Error> {
        self.proxy_token
            .clone()
            .filter(|token| !token.expose().is_empty())
            .ok_or_else(|| Error::Config("no proxy token: set FASTLLM_PROXY_TOKEN".to_owned()))
    }

    pub(crate) fn rebuild_interval(&self) -> Duration {
        Duration::from_secs(self.snapshot_rebuild_interval)
    }
}

impl DatabaseConfig {
    pub(crate) fn pool_sizes(&self) -> PoolSizes {
        PoolSizes {
            gateways: self.database_max_connections,
            admin: self.database_admin_connections,
            reports: self.database_report_connections,
        }
    }

    /// Parses and completes the database URL. Errors never contain it.
    pub(crate) fn options(&self) -> Result<PgConnectOptions, Error> {
        let url = self
            .database_url
            .as_ref()
            .ok_or_else(|| Error::Config("no database: set FASTLLM_DATABASE_URL".to_owned()))?;
        let wrong = |problem: &str| Error::Config(format!("the database URL {problem}"));
        let malformed = "is malformed: expected postgres://user:password@host/name";
        let rest = ["postgres://", "postgresql://"]
            .iter()
            .find_map(|scheme| url.expose().strip_prefix(scheme))
            .ok_or_else(|| wrong(malformed))?;
        if has_unencoded_password(rest) {
            return Err(wrong(
                "has a user name or password with a character that must be percent-encoded: \
                 / as %2F, ? as %3F, # as %23, @ as %40, % as %25",
            ));
        }
        let options = PgConnectOptions::from_str(url.expose()).map_err(|_| wrong(malformed))?;
        // PgBouncer rejects connections that set this. Numbers are not sent as text.
        let options = options.extra_float_digits(None);
        let options = options.application_name("fastllm-control");
        Ok(match &self.ca_bundle {
            Some(bundle) if !url.expose().contains("sslrootcert=") => options.ssl_root_cert(bundle),
            _ => options,
        })
    }
}

/// Whether the part of a URL behind its scheme appears to contain a reserved character in
/// the user name or the password, so that host, path or query begin within them.
fn has_unencoded_password(rest: &str) -> bool {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    let path = behind.split(['?', '#']).next().unwrap_or_default();
    let (credentials, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_encoded = credentials.split('%').skip(1).all(|escape| {
        let digits = escape.as_bytes().get(..2).unwrap_or_default();
        digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit)
    });
    let cut = host.is_empty() || credentials.is_empty();
    credentials.contains('@') || !is_encoded || path.contains('@') || cut && behind.contains('@')
}

/// The encryption keys for stored credentials: `FASTLLM_ENCRYPTION_KEY` (64
/// hexadecimal digits) encrypts and decrypts, `FASTLLM_ENCRYPTION_KEYS_OLD`
/// (comma-separated) only decrypt. There are no flags, because other processes
/// can read them.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the configuration module"
)]
pub(crate) fn vault_from_environment() -> Result<Vault, Error> {
    let current = std::env::var("FASTLLM_ENCRYPTION_KEY")
        .map_err(|_| Error::Config("no encryption key: set FASTLLM_ENCRYPTION_KEY".to_owned()))?;
    let old = std::env::var("FASTLLM_ENCRYPTION_KEYS_OLD").unwrap_or_default();
    Vault::from_hex(
        &current,
        old.split(',').filter(|key| !key.trim().is_empty()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<PgConnectOptions, Error> {
        let config = DatabaseConfig {
            database_url: Some(Secret::new(url)),
            database_max_connections: 1,
            database_admin_connections: 1,
            database_report_connections: 1,
            ca_bundle: None,
        };
        config.options()
    }

    #[test]
    fn reserved_characters_in_a_password_are_an_error_that_names_the_cure() {
        for url in [
            "postgres://u:canary/x@h/d",
            "postgres://u:12/34@h/d",
            "postgres://u:canary?x@h/d",
            "postgres://u:canary#x@h/d",
            "postgres://u:canary@x@h/d",
            "postgres://u:canary%x@h/d",
            "postgres://u:canary%@h/d",
            "postgres://u/x:canary@h/d",
            "postgres://u:canary//@h/d",
        ] {
            let error = options(url).unwrap_err().to_string();
            assert!(error.contains("/ as %2F"), "{url}: {error}");
            assert!(!error.contains("canary"), "{error}");
        }
        for url in [
            "postgres://u:a%2Fb%3Fc%23d%40e%25f:g+h!$&'()*,;=~@h:5432/d?sslmode=require",
            "postgresql://h/d",
            "postgres://u@h/d?options=-c%20x%3Dy",
            "postgres:///d?host=/run/postgresql&user=u",
            "postgres://u:p@[::1]:5432/d",
        ] {
            assert!(options(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn errors_do_not_contain_the_database_url() {
        for url in ["mysql://u:canary-77@h/d", "postgres://u:canary-77@h:port/d"] {
            let error = options(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary-77"));
            assert_eq!(error.exit_code(), 2);
        }
    }
}
