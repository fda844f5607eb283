//! Unix signals that the programs handle.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handles SIGTERM and SIGINT from now on; the future resolves on the first of
/// them. Needs a tokio runtime.
pub fn shutdown() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Handles SIGHUP from now on. Needs a tokio runtime.
pub fn hangup() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
