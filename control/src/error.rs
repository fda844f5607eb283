use fastllm_process::accept::ListenError;
use fastllm_process::logging::LogError;
use fastllm_process::tls::TlsError;

/// Why the control plane does not start, or a command of it fails. No text
/// holds a password, key or database address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag or variable is missing or wrong; the text says which.
    #[error("{0}")]
    Config(String),
    /// The listener cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Logging cannot be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The database has been migrated by a release that this one is too old for.
    #[error(
        "this binary is release {ours}, but the database needs release {oldest} or newer: \
         roll forward, or restore the backup made before the upgrade"
    )]
    TooOld {
        /// This binary.
        ours: String,
        /// The oldest that the schema supports.
        oldest: String,
    },
    /// The database refused or failed.
    #[error("database: {0}")]
    Database(String),
    /// A password cannot be hashed or does not meet the policy.
    #[error("{0}")]
    Password(String),
    /// The machine's random generator failed, or a thread was lost.
    #[error("{0}")]
    Internal(&'static str),
}

impl Error {
    /// The process's exit code: 2 for what the caller has to change in flags
    /// and variables, 1 for everything that failed while running.
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
