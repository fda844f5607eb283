use serde::{Deserialize, Serialize};

use crate::{BackendId, ModelName};

/// What one gateway says of itself and its backends, every
/// `--health-report-interval`. Only the newest report says anything true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// The gateway's name (its pod's name).
    pub replica: String,
    /// A random text per start of the gateway: tells a restart.
    #[serde(default)]
    pub boot_id: String,
    /// Release of the gateway.
    #[serde(default)]
    pub version: String,
    /// The snapshot that it serves.
    pub snapshot_version: u64,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Its view of every backend of the snapshot.
    #[serde(default)]
    pub backends: Vec<BackendHealth>,
    /// Counters since its start.
    #[serde(default)]
    pub process: ProcessCounters,
}

/// One gateway's view of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendHealth {
    /// Which one.
    pub id: BackendId,
    /// Its address.
    pub api_base: String,
    /// The model that it serves.
    pub model: ModelName,
    /// Whether its probes succeed.
    pub healthy: bool,
    /// Requests under way.
    pub inflight: u64,
    /// Requests that wait for a place at it.
    #[serde(default)]
    pub waiting: u64,
    /// Attempts since the gateway's start.
    pub requests_total: u64,
    /// Those that failed (connect error, time-out, 5xx).
    pub errors_total: u64,
}

/// Counters of one gateway process since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessCounters {
    /// Requests that ended well.
    pub requests_ok: u64,
    /// Requests that ended in an error.
    pub requests_failed: u64,
    /// Answers that were given again.
    pub cache_hits: u64,
    /// Look-ups that found none to give again.
    pub cache_misses: u64,
    /// Answers that are kept at the moment.
    pub cache_entries: u64,
    /// Bytes of them.
    pub cache_bytes: u64,
    /// Usage events lost to a full queue or a refused batch.
    pub usage_dropped: u64,
    /// Usage events waiting to be sent.
    pub usage_queued: u64,
    /// 401 answers.
    pub rejected_unauthenticated: u64,
    /// 404 answers for a model that nobody serves.
    pub rejected_model_not_found: u64,
}
