//! Who sent the request: from a presented key to a principal.

use std::sync::Arc;

use fastllm_contract::Timestamp;

use crate::caller::{Caller, Identified, hash_key};
use crate::refusal::Refusal;
use crate::state::RoutingState;

/// Identifies the caller that presents `key` (the secret itself) at the time
/// `now`.
///
/// An open snapshot requires no key. A key of an unknown principal is treated
/// as unknown.
pub fn identify(
    state: &RoutingState,
    key: Option<&[u8]>,
    now: Timestamp,
) -> Result<Caller, Refusal> {
    if state.open() {
        return Ok(Caller::Anonymous);
    }
    let hash = hash_key(key.ok_or(Refusal::InvalidKey)?);
    let entry = state.keys().get(&hash).ok_or(Refusal::InvalidKey)?;
    if entry.disabled {
        return Err(Refusal::InvalidKey);
    }
    if entry.expires_at.is_some_and(|expiry| expiry <= now) {
        return Err(Refusal::ExpiredKey);
    }
    let principal = state
        .principal(entry.principal)
        .ok_or(Refusal::InvalidKey)?;
    Ok(Caller::Identified(Identified {
        principal: Arc::clone(principal),
        key: entry.id,
        key_account: entry.account.clone(),
        team_account: state.team_account(principal),
    }))
}

#[cfg(test)]
mod tests;
