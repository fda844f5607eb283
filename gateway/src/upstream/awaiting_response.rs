use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an upstream has all of a request, and has not begun its answer.
/// Whoever sends the request says so.
#[derive(Debug, Default)]
pub(crate) struct AwaitingResponse(AtomicBool);

impl AwaitingResponse {
    /// All of it has left.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// It was answered, or will not be.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it waits for the answer to all of it.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
