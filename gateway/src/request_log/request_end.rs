use fastllm_contract::RefusalKind;
use fastllm_engine::Refusal;

use crate::telemetry::Outcome;

/// The status that is logged for a client that disconnected before its response
/// was complete.
const CLIENT_GONE: u16 = 499;

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestEnd {
    pub(super) outcome: Outcome,
    pub(super) status: u16,
    pub(super) refusal: Option<RefusalKind>,
    /// The error code of the gateway's rejection.
    pub(super) code: Option<&'static str>,
}

impl RequestEnd {
    /// The client disconnected.
    pub(super) const DISCONNECTED: Self = Self {
        outcome: Outcome::ClientGone,
        status: CLIENT_GONE,
        refusal: None,
        code: None,
    };

    /// The gateway rejected the request, or no upstream could respond.
    pub(super) fn rejected(refusal: &Refusal, status: u16) -> Self {
        Self {
            outcome: match refusal.status() {
                500 | 502 | 504 => Outcome::Unavailable,
                _ => Outcome::Rejected,
            },
            status,
            refusal: refusal.recorded_as(),
            code: Some(refusal.code()),
        }
    }

    /// A response went to the client, all of it where `complete`.
    pub(super) fn forwarded(status: u16, complete: bool) -> Self {
        Self {
            outcome: if complete && status < 400 {
                Outcome::Ok
            } else {
                Outcome::UpstreamError
            },
            status,
            refusal: None,
            code: None,
        }
    }

    pub(super) fn is_rejection(&self) -> bool {
        self.outcome == Outcome::Rejected
    }

    /// Whether a response went to the client, or began to.
    pub(super) fn has_response(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Ok | Outcome::UpstreamError | Outcome::ClientGone
        )
    }
}
