use fastllm_process::accept::ListenError;
use fastllm_process::logging::LogError;
use fastllm_process::tls::TlsError;

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
    /// The database was migrated by a newer release that does not support this one.
    #[error(
        "this binary is release {current}, but the database requires release {oldest} or newer: \
         upgrade, or restore the backup made before the upgrade"
    )]
    TooOld {
        /// The release of this binary.
        current: String,
        /// The oldest release that the schema supports.
        oldest: String,
    },
    /// The database rejected a statement or failed.
    #[error("database: {0}")]
    Database(String),
    /// A password cannot be hashed or does not meet the policy.
    #[error("{0}")]
    Password(String),
    /// An internal failure, such as of the random generator or of a thread.
    #[error("{0}")]
    Internal(&'static str),
}

impl Error {
    /// The exit code of the process: 2 for invalid flags or environment variables, 1
    /// for failures at run time.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Tls(_) | Self::Log(LogError::Filter(_)) | Self::Password(_) => {
                2
            }
            Self::Listen(_)
            | Self::Log(LogError::AlreadyInitialized)
            | Self::TooOld { .. }
            | Self::Database(_)
            | Self::Internal(_) => 1,
        }
    }
}
