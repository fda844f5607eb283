use std::fmt::Debug;
use std::time::Duration;

/// The metrics of one backend. The gateway attaches them to each backend of a
/// snapshot before requests see it, so that the request path needs no lookup.
pub trait BackendMetrics: Debug + Send + Sync {
    /// Records a response, complete or partial, and the time since the
    /// request's arrival.
    fn record_response(&self, duration: Duration);

    /// Records the first event of a stream and the time since the request's
    /// arrival.
    fn record_first_event(&self, after: Duration);

    /// Records the tokens that a response reported.
    fn record_tokens(&self, prompt: u64, completion: u64);
}
