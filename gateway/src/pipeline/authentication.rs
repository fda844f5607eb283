//! Identifies the caller of a request.

use std::sync::Arc;

use fastllm_engine::{Caller, Refusal, RoutingState, identify};

use crate::http::Head;
use crate::request_log::RequestLog;

/// The caller of a request, and the tables that it was identified by.
pub(super) struct Authenticated {
    pub(super) tables: Arc<RoutingState>,
    pub(super) caller: Caller,
}

/// Identifies the caller by these tables and the time of the request's arrival.
pub(super) fn authenticate(
    tables: &RoutingState,
    head: &Head,
    log: &mut RequestLog,
) -> Result<Caller, Refusal> {
    let caller = identify(tables, presented_key(head), log.arrived_at())?;
    if let Some(identified) = caller.identified() {
        log.set_caller(identified);
    }
    Ok(caller)
}

/// The key that a client presents: `authorization: Bearer` (the scheme in any
/// case) or `x-api-key`.
fn presented_key(head: &Head) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    if let Some(value) = head.field("authorization") {
        let (scheme, key) = value.split_at_checked(SCHEME.len())?;
        return scheme
            .eq_ignore_ascii_case(SCHEME)
            .then(|| key.trim_ascii());
    }
    head.field("x-api-key").map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::presented_key;
    use crate::http::Head;

    fn key(name: &str, value: &str) -> Option<Vec<u8>> {
        presented_key(&Head::with(&format!("{name}: {value}\r\n"))).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_key_comes_as_bearer_in_any_case_or_as_x_api_key() {
        assert_eq!(key("authorization", "Bearer sk-1").unwrap(), b"sk-1");
        assert_eq!(key("authorization", "bEARER  sk-1 ").unwrap(), b"sk-1");
        assert_eq!(key("x-api-key", "sk-1").unwrap(), b"sk-1");
        assert_eq!(key("authorization", "Basic sk-1"), None);
        assert_eq!(key("authorization", "Bearer"), None);
        assert_eq!(key("authorization", "Bearersk-1"), None);
        assert_eq!(key("cookie", "sk-1"), None);
    }
}
