use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an upstream has received a complete request and has not started to
/// respond. Set by the sender of the request.
#[derive(Debug, Default)]
pub(crate) struct AwaitingResponse(AtomicBool);

impl AwaitingResponse {
    /// The request was sent completely.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The response started, or will not arrive.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the upstream has the complete request and has not responded.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
