//! Objects that backends store, such as a previous response: which backend has
//! them, and which does not.

use std::sync::Arc;

use fastllm_engine::{Pool, object_hash};
use http::StatusCode;

use super::outgoing::Outgoing;
use super::response_stream::ResponseStream;
use crate::http::ProxiedEndpoint;

/// The codes of errors about an object that is not stored.
const CODES: [&[u8]; 2] = [
    b"\"previous_response_not_found\"",
    b"\"conversation_not_found\"",
];

/// The backend of an attempt, which stores the objects of a successful response.
#[derive(Debug)]
pub(super) struct ObjectOwner {
    pool: Arc<Pool>,
    /// Its index in the pool.
    index: usize,
    /// The objects that the request refers to, by the hashes of their IDs.
    referred: Vec<u64>,
}

impl ObjectOwner {
    /// The backend with this index; nothing for an endpoint that stores no
    /// objects.
    pub(super) fn new(pool: &Arc<Pool>, index: usize, outgoing: &Outgoing<'_, '_>) -> Option<Self> {
        (outgoing.endpoint == ProxiedEndpoint::Responses).then(|| Self {
            pool: Arc::clone(pool),
            index,
            referred: outgoing.stored.to_vec(),
        })
    }

    /// Remembers what the request refers to, after a success.
    pub(super) fn record_referred(&self) {
        for object in &self.referred {
            self.pool.record_owner(self.index, *object);
        }
    }

    /// Remembers a response.
    pub(super) fn record(&self, id: &str) {
        self.pool.record_owner(self.index, object_hash(id));
    }
}

/// Whether a response is an error because the backend does not store an object
/// that the request refers to. Another backend may store it.
pub(super) fn lacks_object(
    outgoing: &Outgoing<'_, '_>,
    status: StatusCode,
    stream: &ResponseStream,
) -> bool {
    let ids = outgoing.members.stored_ids();
    if ids.is_empty() || !matches!(status.as_u16(), 400 | 404) {
        return false;
    }
    let text = stream.held_text();
    let contains = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
    ids.iter().any(|id| contains(id.as_bytes())) || CODES.into_iter().any(contains)
}
