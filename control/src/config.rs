use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use fastllm_contract::Secret;
use fastllm_process::address::parse_host;
use fastllm_process::logging::LogFormat;
use sqlx::postgres::PgConnectOptions;

use crate::Error;
use crate::crypto::Vault;

/// The flags of the control plane.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// Address to listen on: IPv4, IPv6 or `localhost`.
    #[arg(long, env = "FASTLLM_HOST", default_value = "127.0.0.1", value_parser = parse_host)]
    pub host: IpAddr,
    /// Port of the admin API.
    #[arg(long, default_value_t = 4001)]
    pub admin_port: u16,
    /// Where the database is.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// Shared secret of the gateways.
    #[arg(long, env = "FASTLLM_PROXY_TOKEN", hide_env_values = true, value_parser = parse_secret)]
    pub proxy_token: Option<Secret>,
    /// Seconds between looks for changes that no notification told of.
    #[arg(long, env = "FASTLLM_SNAPSHOT_REBUILD_INTERVAL", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub snapshot_rebuild_interval: u64,
    /// Certificate chain of the admin listener (PEM).
    #[arg(long, env = "FASTLLM_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the admin listener (PEM).
    #[arg(long, env = "FASTLLM_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// What to log, as filter directives.
    #[arg(long, env = "FASTLLM_LOG", default_value = "info")]
    pub log: String,
    /// How log lines look.
    #[arg(long, env = "FASTLLM_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Seconds that running requests may take to finish at shutdown.
    #[arg(long, env = "FASTLLM_SHUTDOWN_GRACE", default_value_t = 25)]
    pub shutdown_grace: u64,
    /// Seconds between becoming unready and closing the listener.
    #[arg(long, env = "FASTLLM_SHUTDOWN_DELAY", default_value_t = 0)]
    pub shutdown_delay: u64,
    /// `namespace/name` of the custom resource that manages this process; set
    /// by the operator.
    #[arg(long, env = "FASTLLM_OPERATOR_RESOURCE", hide = true)]
    pub operator_resource: Option<String>,
}

/// How to reach the database.
#[derive(Debug, Clone, Args)]
pub struct DatabaseConfig {
    /// Address of the database, `postgres://user:password@host/name`.
    #[arg(long, env = "FASTLLM_DATABASE_URL", hide_env_values = true, value_parser = parse_secret)]
    pub database_url: Option<Secret>,
    /// Most connections that one control plane opens (one more is for LISTEN).
    #[arg(long, env = "FASTLLM_DATABASE_MAX_CONNECTIONS", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_max_connections: u32,
    /// Certificates to trust beside the system's (PEM), for the database, too.
    #[arg(long, env = "FASTLLM_CA_BUNDLE")]
    pub ca_bundle: Option<PathBuf>,
}

/// What the binary does instead of serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Gives somebody a password and the right to administer.
    SetPassword(SetPassword),
    /// Writes the admin API's OpenAPI document to standard output.
    Openapi,
}

/// Flags of `set-password`.
#[derive(Debug, Clone, Args)]
pub struct SetPassword {
    /// Who; created as a user when new.
    #[arg(long)]
    pub name: String,
    /// The password; better given by the environment.
    #[arg(long, env = "FASTLLM_BOOTSTRAP_PASSWORD", hide_env_values = true, value_parser = parse_secret)]
    pub password: Secret,
    /// Change nothing when there is a password already.
    #[arg(long)]
    pub create_only: bool,
    /// Where the database is.
    #[command(flatten)]
    pub database: DatabaseConfig,
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that clap asks for")]
fn parse_secret(text: &str) -> Result<Secret, String> {
    Ok(Secret::new(text))
}

impl Config {
    /// Where the admin API listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.admin_port)
    }

    /// The token that gateways present.
    pub(crate) fn token(&self) -> Result<Secret, Error> {
        self.proxy_token
            .clone()
            .filter(|token| !token.expose().is_empty())
            .ok_or_else(|| {
                Error::Config("a proxy token is needed: set FASTLLM_PROXY_TOKEN".to_owned())
            })
    }

    pub(crate) fn rebuild_interval(&self) -> Duration {
        Duration::from_secs(self.snapshot_rebuild_interval)
    }
}

impl DatabaseConfig {
    /// Checks and completes the address. The error never repeats it.
    pub(crate) fn options(&self) -> Result<PgConnectOptions, Error> {
        let url = self.database_url.as_ref().ok_or_else(|| {
            Error::Config("a database is needed: set FASTLLM_DATABASE_URL".to_owned())
        })?;
        let wrong = || {
            Error::Config(
                "the database address is malformed: expected postgres://user:password@host/name"
                    .to_owned(),
            )
        };
        if !["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| url.expose().starts_with(scheme))
        {
            return Err(wrong());
        }
        let options = PgConnectOptions::from_str(url.expose()).map_err(|_| wrong())?;
        let options = options.application_name("fastllm-control");
        Ok(match &self.ca_bundle {
            Some(bundle) if !url.expose().contains("sslrootcert=") => options.ssl_root_cert(bundle),
            _ => options,
        })
    }
}

/// The keys for credentials at rest: `FASTLLM_ENCRYPTION_KEY` (64 hexadecimal
/// digits), and `FASTLLM_ENCRYPTION_KEYS_OLD` (comma-separated) that are only
/// read with. Environment only: a flag would show in the list of processes.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the configuration module"
)]
pub(crate) fn vault_from_environment() -> Result<Vault, Error> {
    let current = std::env::var("FASTLLM_ENCRYPTION_KEY").map_err(|_| {
        Error::Config("an encryption key is needed: set FASTLLM_ENCRYPTION_KEY".to_owned())
    })?;
    let old = std::env::var("FASTLLM_ENCRYPTION_KEYS_OLD").unwrap_or_default();
    Vault::from_hex(
        &current,
        old.split(',').filter(|key| !key.trim().is_empty()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_database_address_is_not_repeated() {
        for url in ["mysql://u:canary-77@h/d", "postgres://u:canary-77@h:port/d"] {
            let config = DatabaseConfig {
                database_url: Some(Secret::new(url)),
                database_max_connections: 1,
                ca_bundle: None,
            };
            let error = config.options().unwrap_err();
            assert!(!format!("{error} {error:?} {config:?}").contains("canary-77"));
            assert_eq!(error.exit_code(), 2);
        }
    }
}
