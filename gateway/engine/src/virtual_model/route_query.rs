use std::fmt;

use fastllm_contract::Timestamp;
use http::{HeaderMap, HeaderName};

/// The header fields of a request, however they are kept.
pub trait HeaderFields: fmt::Debug {
    /// Whether one of the fields with this name has exactly this value.
    fn has(&self, name: &HeaderName, value: &[u8]) -> bool;
}

impl HeaderFields for HeaderMap {
    fn has(&self, name: &HeaderName, value: &[u8]) -> bool {
        let mut given = self.get_all(name).into_iter();
        given.any(|given| given.as_bytes() == value)
    }
}

/// What routing knows of a request beside its caller and the name that it asks
/// for.
#[derive(Debug, Clone, Copy)]
pub struct RouteQuery<'a> {
    /// The answer is to be streamed.
    pub stream: bool,
    /// Estimated size of the prompt.
    pub prompt_tokens: u64,
    /// The most tokens that the answer may have, where the client said so.
    pub max_tokens: Option<u64>,
    /// The request's headers.
    pub headers: &'a dyn HeaderFields,
    /// When it arrived.
    pub at: Timestamp,
    /// Hash of the beginning of the prompt, the same in every turn of a
    /// conversation; 0 where nothing asked for it (see
    /// [`super::Resolved::reads_prompt`]).
    pub prompt_hash: u64,
    /// The used share of the caller's tighter budget, where one is known.
    pub budget_used_percent: Option<u8>,
}

/// The end of one message in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// Hash of everything up to here.
    pub hash: u64,
    /// How much text that is, in bytes.
    pub bytes: u32,
}

/// What a policy may know of a request when it chooses a backend.
#[derive(Debug, Clone, Copy)]
pub struct PickContext<'a> {
    /// The time.
    pub at: Timestamp,
    /// The answer is to be streamed.
    pub stream: bool,
    /// The prompt's boundaries in order; none where they are not known.
    pub prompt: &'a [Boundary],
}

/// Spreads the bits of a hash or an id over all 64 (the finaliser of
/// `SplitMix64`): the same on every replica and in every release.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A seed out of a name (FNV-1a).
pub(super) fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
