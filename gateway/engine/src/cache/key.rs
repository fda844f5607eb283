use std::fmt;
use std::sync::Arc;

use ring::digest::{Context, SHA256};

use super::ModelCaching;
use crate::identify::Caller;
use crate::state::Principal;

/// Told apart from whatever else is hashed with SHA-256, and changed with the
/// layout of what follows.
const DOMAIN: &[u8] = b"fastllm response cache, 1";

/// Names an answer: SHA-256 of everything that decides it. Two requests have the
/// same key only if they ask the same, of the same model, and may see each
/// other's answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; 32]);

impl fmt::Debug for CacheKey {
    /// Its beginning, which tells nothing of what was asked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.0.first_chunk().copied().unwrap_or_default();
        write!(f, "CacheKey({:08x})", u32::from_be_bytes(first))
    }
}

/// Who may be given an answer again.
#[derive(Debug, Clone)]
pub enum CacheScope {
    /// Only the principal that asked for it, whichever of its keys it presents.
    Principal(Arc<Principal>),
    /// Every principal that may use the model.
    AllPrincipals,
    /// Everyone who asks a gateway that wants no key.
    Anonymous,
}

impl CacheScope {
    /// That of a caller's requests; with `shared`, principals have one together.
    pub fn of(caller: &Caller, shared: bool) -> Self {
        match caller {
            Caller::Anonymous => Self::Anonymous,
            Caller::Identified(_) if shared => Self::AllPrincipals,
            Caller::Identified(identified) => Self::Principal(Arc::clone(&identified.principal)),
        }
    }
}

/// A key that is being made.
///
/// Invariant: each part is told from the next one, by a mark or by its length,
/// so that no two lists of parts are hashed alike.
pub struct CacheKeyBuilder(Context);

impl CacheKeyBuilder {
    /// Of an answer of this model, at this endpoint, for these callers.
    pub fn new(caching: &ModelCaching, endpoint: &str, scope: &CacheScope) -> Self {
        let mut maker = Self(Context::new(&SHA256));
        maker.0.update(DOMAIN);
        maker.0.update(&caching.identity);
        maker.part(endpoint.as_bytes());
        match scope {
            CacheScope::Anonymous => maker.0.update(b"a"),
            CacheScope::AllPrincipals => maker.0.update(b"s"),
            // A configuration file numbers its principals anew at each reading:
            // there, only the name says who it is.
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

    /// A header field that the backend sees, in the order in which it does.
    pub fn header(&mut self, name: &str, value: &[u8]) {
        self.0.update(b"h");
        self.part(name.as_bytes());
        self.part(value);
    }

    /// The body, in as many pieces as there are.
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
