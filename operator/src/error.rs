//! What can go wrong at this crate's border, and the one way to call the API server.

use std::time::Duration;

use thiserror::Error;

/// Longest time that a call to the API server may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A call to the API server that gave no result.
#[derive(Debug, Error)]
pub enum CallError {
    /// No answer in [`CALL_TIMEOUT`].
    #[error("the API server did not answer within 10 seconds")]
    Timeout,
    /// The API server said no.
    #[error("{message} ({code})")]
    Api {
        /// HTTP status.
        code: u16,
        /// The API server's own words.
        message: String,
    },
    /// No answer at all, or one that could not be read.
    #[error("the API server could not be reached: {0}")]
    Transport(#[source] Box<kube::Error>),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Api {
                code: status.code,
                message: status.message,
            },
            other => Self::Transport(Box::new(other)),
        }
    }
}

impl CallError {
    /// Whether the API server answered with this status.
    #[must_use]
    pub fn is(&self, status: u16) -> bool {
        matches!(self, Self::Api { code, .. } if *code == status)
    }
}

/// Calls the API server, with the time limit that every call has.
pub async fn call<T>(
    request: impl Future<Output = Result<T, kube::Error>> + Send,
) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_TIMEOUT, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CallError::Timeout),
    }
}

/// Why the operator ends.
#[derive(Debug, Error)]
pub enum OperatorError {
    /// Another replica took over, or the API server could not be reached for too long.
    #[error("lost the leadership: {0}")]
    LeadershipLost(&'static str),
    /// A watch, the reconciler or the HTTP listener ended by itself.
    #[error("{0} ended unexpectedly")]
    TaskEnded(&'static str),
    /// The metrics address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// A client could not be set up.
    #[error("cannot set up the HTTP client: {0}")]
    Http(#[from] reqwest::Error),
    /// The Kubernetes client could not be set up.
    #[error("cannot set up the Kubernetes client: {0}")]
    Kube(#[from] Box<kube::Error>),
    /// A metric was registered twice.
    #[error("cannot register a metric: {0}")]
    Metrics(#[from] prometheus::Error),
}
