use serde::{Deserialize, Serialize};

use crate::{BackendId, ModelName};

/// The state of one gateway and its backends, sent every
/// `--health-report-interval`. Only the latest report is valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// The gateway's name (its pod's name).
    pub replica: String,
    /// A random ID for each start of the gateway, to detect restarts.
    #[serde(default)]
    pub boot_id: String,
    /// The gateway's release.
    #[serde(default)]
    pub version: String,
    /// The version of its snapshot.
    pub snapshot_version: u64,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// The state of every backend of the snapshot.
    #[serde(default)]
    pub backends: Vec<BackendHealth>,
    /// Counters since its start.
    #[serde(default)]
    pub process: ProcessCounters,
}

/// The state of one backend at one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendHealth {
    /// The backend.
    pub id: BackendId,
    /// The address.
    pub api_base: String,
    /// The model.
    pub model: ModelName,
    /// Whether its probes succeed.
    pub healthy: bool,
    /// Requests in flight.
    pub inflight: u64,
    /// Requests queued for a slot.
    #[serde(default)]
    pub waiting: u64,
    /// Attempts since the gateway's start.
    pub requests_total: u64,
    /// Failed attempts (connect error, timeout, 5xx).
    pub errors_total: u64,
}

/// Counters of one gateway process since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessCounters {
    /// Successful requests.
    pub requests_ok: u64,
    /// Failed requests.
    pub requests_failed: u64,
    /// Cache hits.
    pub cache_hits: u64,
    /// Cache misses.
    pub cache_misses: u64,
    /// Cached responses.
    pub cache_entries: u64,
    /// Their size in bytes.
    pub cache_bytes: u64,
    /// Usage events dropped because of a full queue or a rejected batch.
    pub usage_dropped: u64,
    /// Usage events waiting to be sent.
    pub usage_queued: u64,
    /// 401 responses.
    pub rejected_unauthenticated: u64,
    /// 404 responses for an unknown model.
    pub rejected_model_not_found: u64,
}
