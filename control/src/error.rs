use std::io;

use fastllm_process::accept::ListenError;
use fastllm_process::logging::LogError;
use fastllm_process::tls::TlsError;

use crate::db::{DbError, MigrationError};

/// An error that ends the control plane or one of its commands. No text contains a
/// password, key or database address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag or environment variable is missing or invalid.
    #[error("{0}")]
    Config(String),
    /// The listener cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificate or its key is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Logging cannot be initialized.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The schema of the database cannot be used.
    #[error(transparent)]
    Migration(#[from] MigrationError),
    /// The database rejected a statement or failed.
    #[error("database")]
    Database(#[from] DbError),
    /// The database's credentials are encrypted with a key that is not configured.
    #[error(
        "credentials in the database are encrypted with the key {database}, but the configured \
         encryption keys are {configured}: restore that key, or add it to \
         FASTLLM_ENCRYPTION_KEYS_OLD"
    )]
    EncryptionKey {
        /// The ID of the database's key, in hexadecimal.
        database: String,
        /// The IDs of the current key and the old ones, separated by commas.
        configured: String,
    },
    /// The password does not meet the policy.
    #[error(transparent)]
    Password(Box<dyn std::error::Error + Send + Sync>),
    /// The operating system refused something that the process needs.
    #[error("cannot {what}")]
    Io {
        /// What failed, as in "cannot start the runtime".
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The OpenAPI document cannot be serialized.
    #[error("cannot serialize the OpenAPI document")]
    OpenApi(#[source] serde_json::Error),
    /// A metric cannot be registered.
    #[error("cannot register a metric")]
    Metrics(#[source] prometheus::Error),
    /// An internal failure, such as of the random generator or of a thread,
    /// whose cause has no text.
    #[error("{0}")]
    Internal(&'static str),
}

impl Error {
    /// The error of the database if it is temporary: the database is unavailable.
    pub(crate) fn outage(&self) -> Option<&DbError> {
        match self {
            Self::Migration(error) => error.outage(),
            Self::Database(error @ DbError::Unavailable(_)) => Some(error),
            _ => None,
        }
    }

    /// The exit code of the process: 2 for invalid flags or environment variables, 1
    /// for failures at run time.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Tls(_)
            | Self::Log(LogError::Filter(_))
            | Self::EncryptionKey { .. }
            | Self::Password(_) => 2,
            Self::Listen(_)
            | Self::Log(LogError::AlreadyInitialized)
            | Self::Database(_)
            | Self::Migration(_)
            | Self::Io { .. }
            | Self::OpenApi(_)
            | Self::Metrics(_)
            | Self::Internal(_) => 1,
        }
    }
}
