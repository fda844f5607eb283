//! Callers: principals with their grants, and the keys that identify them.

mod keys;
mod principal;

pub(crate) use keys::Keys;
pub use keys::hash_key;
pub use principal::Principal;

use std::sync::Arc;

use fastllm_contract::{KeyId, Timestamp};

use crate::accounts::Account;

/// The sender of a request.
#[derive(Debug, Clone)]
pub enum Caller {
    /// No key is required.
    Anonymous,
    /// The principal of a valid key.
    Identified(Identified),
}

/// A principal, identified by one of its keys.
#[derive(Debug, Clone)]
pub struct Identified {
    /// The principal with its grants.
    pub principal: Arc<Principal>,
    /// The presented key.
    pub key: KeyId,
    pub(crate) key_account: Option<Arc<Account>>,
    pub(crate) team_account: Option<Arc<Account>>,
}

impl Identified {
    /// The accounts that every request of it counts for.
    pub(crate) fn accounts(&self) -> [Option<&Arc<Account>>; 3] {
        [
            self.key_account.as_ref(),
            self.principal.account(),
            self.team_account.as_ref(),
        ]
    }
}

impl Caller {
    /// The principal; `None` if no key is required.
    pub fn identified(&self) -> Option<&Identified> {
        match self {
            Self::Anonymous => None,
            Self::Identified(identified) => Some(identified),
        }
    }

    /// The used share of its most used budget, in percent; `None` without a
    /// budget.
    pub fn budget_used_percent(&self, now: Timestamp) -> Option<u8> {
        let accounts = self.identified()?.accounts().into_iter().flatten();
        accounts
            .filter_map(|account| account.budget_used_percent(now))
            .max()
    }

    /// Whether it may use a concrete model.
    pub fn may_use(&self, model: &str) -> bool {
        match self {
            Self::Anonymous => true,
            Self::Identified(identified) => identified.principal.may_use(model),
        }
    }
}
