//! The signals that end a process, and the one that makes it read its file.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGTERM and Ctrl-C from now on; the future resolves on the
/// first of them. Needs a tokio runtime.
pub fn terminated() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// SIGHUP from now on. Needs a tokio runtime.
pub(crate) fn hang_up() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
