use std::fmt;

use fastllm_contract::Timestamp;
use http::{HeaderMap, HeaderName};

use crate::pool::EndpointIndex;

/// The header fields of a request, in any representation.
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

/// What routing uses of a request, besides its caller and the requested name.
#[derive(Debug, Clone, Copy)]
pub struct RouteQuery<'a> {
    /// Whether the response is streamed.
    pub stream: bool,
    /// The endpoint.
    pub endpoint: EndpointIndex,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u64,
    /// The token limit of the response, if the client set one.
    pub max_tokens: Option<u64>,
    /// The header fields.
    pub headers: &'a dyn HeaderFields,
    /// The time of arrival.
    pub at: Timestamp,
    /// Hash of the beginning of the prompt, equal in every turn of a
    /// conversation; 0 if not needed (see [`crate::Resolved::reads_prompt`]).
    pub prompt_hash: u64,
    /// The used share of the caller's most used budget, if known.
    pub budget_used_percent: Option<u8>,
}
