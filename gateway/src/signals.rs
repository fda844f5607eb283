//! The signals that end a process.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves on SIGTERM or Ctrl-C. Where they cannot be heard it never does;
/// the process then ends as the system wants it.
pub async fn terminated() {
    let heard = async {
        let mut terminate = signal(SignalKind::terminate()).ok()?;
        let mut interrupt = signal(SignalKind::interrupt()).ok()?;
        tokio::select! {
            heard = terminate.recv() => heard,
            heard = interrupt.recv() => heard,
        }
    };
    if heard.await.is_none() {
        tracing::error!("signals cannot be heard");
        std::future::pending::<()>().await;
    }
}
