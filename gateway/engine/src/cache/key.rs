use std::fmt;
use std::sync::Arc;

use ring::digest::{Context, SHA256};

use super::ModelCaching;
use crate::caller::{Caller, Principal};

/// Separates these hashes from other uses of SHA-256; changed with the layout
/// below.
const DOMAIN: &[u8] = b"fastllm response cache, 1";

/// SHA-256 of everything that determines a response. Two requests have the same
/// key only if they are equal, use the same model, and may share responses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; 32]);

impl fmt::Debug for CacheKey {
    /// The first bytes, which reveal nothing of the request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.0.first_chunk().copied().unwrap_or_default();
        write!(f, "CacheKey({:08x})", u32::from_be_bytes(first))
    }
}

/// Which callers share cached responses.
#[derive(Debug, Clone)]
pub enum CacheScope {
    /// The principal that sent the request, with any of its keys.
    Principal(Arc<Principal>),
    /// Every principal that may use the model.
    AllPrincipals,
    /// Every caller of a gateway that requires no key.
    Anonymous,
}

impl CacheScope {
    /// The scope of a caller's requests; if `shared`, all principals share one.
    pub fn of(caller: &Caller, shared: bool) -> Self {
        match caller {
            Caller::Anonymous => Self::Anonymous,
            Caller::Identified(_) if shared => Self::AllPrincipals,
            Caller::Identified(identified) => Self::Principal(Arc::clone(&identified.principal)),
        }
    }
}

/// Builds a [`CacheKey`].
///
/// Invariant: each part is delimited by a mark or by its length, so that
/// different lists of parts never hash alike.
pub struct CacheKeyBuilder(Context);

impl CacheKeyBuilder {
    /// Starts the key of a response of this model at this endpoint, in this
    /// scope.
    pub fn new(caching: &ModelCaching, endpoint: &str, scope: &CacheScope) -> Self {
        let mut maker = Self(Context::new(&SHA256));
        maker.0.update(DOMAIN);
        maker.0.update(&caching.identity);
        maker.part(endpoint.as_bytes());
        match scope {
            CacheScope::Anonymous => maker.0.update(b"a"),
            CacheScope::AllPrincipals => maker.0.update(b"s"),
            // A configuration file numbers its principals again at each load:
            // there, only the name identifies them.
            CacheScope::Principal(principal) => {
                maker.0.update(b"p");
                maker.0.update(&principal.id().0.to_be_bytes());
                maker.part(principal.name().as_bytes());
            }
        }
        maker
    }

    fn part(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// Adds a header field that is forwarded, in forwarded order.
    pub fn header(&mut self, name: &str, value: &[u8]) {
        self.0.update(b"h");
        self.part(name.as_bytes());
        self.part(value);
    }

    /// Adds a query parameter that is forwarded, as received, in forwarded order.
    pub fn query_parameter(&mut self, pair: &str) {
        self.0.update(b"q");
        self.part(pair.as_bytes());
    }

    /// Adds the body, in any number of pieces, and returns the key.
    pub fn finish<'b>(mut self, pieces: impl IntoIterator<Item = &'b [u8]>) -> CacheKey {
        self.0.update(b"b");
        for piece in pieces {
            self.0.update(piece);
        }
        let mut key = [0; 32];
        key.copy_from_slice(self.0.finish().as_ref());
        CacheKey(key)
    }
}

impl fmt::Debug for CacheKeyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheKeyBuilder").finish_non_exhaustive()
    }
}
