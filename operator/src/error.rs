//! Error types shared by the crate, and the time limit on calls to the API server.

use std::io;
use std::time::Duration;

use fastllm_process::accept::ListenError;
pub use fastllm_process::error::Chain;

/// Maximum duration of a call to the API server.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A failed call to the API server.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No response within [`CALL_TIMEOUT`].
    #[error("the API server did not respond within 10 seconds")]
    Timeout,
    /// An error response.
    #[error("{message} ({code})")]
    Api {
        /// HTTP status code.
        code: u16,
        /// Message of the API server.
        message: String,
    },
    /// No response, or one that could not be read.
    #[error("the API server could not be reached")]
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
    /// Whether the API server responded with this status code.
    #[must_use]
    pub fn is(&self, status: u16) -> bool {
        matches!(self, Self::Api { code, .. } if *code == status)
    }
}

/// Runs a call to the API server under [`CALL_TIMEOUT`].
///
/// # Errors
/// If the call fails or times out.
pub async fn call<T>(
    request: impl Future<Output = Result<T, kube::Error>> + Send,
) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_TIMEOUT, request).await {
        Ok(response) => Ok(response?),
        Err(_) => Err(CallError::Timeout),
    }
}

/// The reason why the operator exits.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Another replica acquired the lease, or it could not be renewed in time.
    #[error("lost leadership: {0}")]
    LeadershipLost(&'static str),
    /// A task that runs until shutdown ended.
    #[error("{0} ended unexpectedly")]
    TaskEnded(&'static str),
    /// The metrics address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The HTTP listener failed.
    #[error("cannot serve HTTP")]
    Serve(#[source] io::Error),
    /// The HTTP client cannot be created.
    #[error("cannot create the HTTP client")]
    Http(#[from] reqwest::Error),
    /// The metrics cannot be registered.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
}

#[cfg(test)]
mod tests {
    use std::io;

    use fastllm_process::accept::ListenError;

    use super::{Chain, OperatorError};

    #[test]
    fn every_source_is_displayed_once() {
        let error = OperatorError::from(ListenError {
            address: ([127, 0, 0, 1], 80).into(),
            source: io::Error::other("in use"),
        });
        let text = Chain(&error).to_string();
        assert_eq!(text, "cannot listen on 127.0.0.1:80: in use");
    }
}
