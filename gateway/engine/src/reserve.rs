//! Have they any allowance left? Limits and budgets of a principal, of one of
//! its models, of a key and of a team, taken in one [`Reservation`].
//!
//! Everything is an atomic number in an [`Account`](account::Account) that
//! outlives snapshots; no lock is taken and nobody is asked. Control is told now
//! and then what was used, and says which share of each limit and budget this
//! gateway may take.

mod account;
mod accounts;
mod bucket;
mod limited;
mod reservation;
mod spending;

use std::cell::LazyCell;
use std::sync::Arc;

use fastllm_contract::{Timestamp, Tokens};

pub(crate) use account::Account;
pub use accounts::Accounts;
pub use limited::{LimitKind, LimitScope, RateLimit, RateLimited, RateLimits};
use reservation::{AccountHold, AccountHolds, Demand, check};
pub use reservation::{ActualUsage, Reservation};
pub use spending::BudgetKind;

use crate::identify::Caller;
use crate::pricing::{self, Quantities};
use crate::refusal::Refusal;
use crate::route::{Chain, Pool};

/// A key's, a principal's and a team's.
const MOST_SHARED: usize = 3;

/// What a request is thought to need.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// When it arrived.
    pub at: Timestamp,
    /// Tokens of its prompt, by a rough count.
    pub prompt_tokens: u64,
    /// The most tokens that its answer may have, where the client said so.
    pub max_tokens: Option<u64>,
    /// Answers of this kind have tokens of their own.
    pub has_completion: bool,
    /// How many choices it asks for.
    pub choices: u64,
    /// What it will use beside tokens, as far as that can be known.
    pub quantities: Quantities,
}

impl Cost {
    /// Tokens of all choices by this model, each as long as the client allows at
    /// most, else as the model's backends allow by default, else as most of its
    /// choices have been.
    fn completion(&self, pool: &Pool) -> u64 {
        if !self.has_completion {
            return 0;
        }
        let each = self
            .max_tokens
            .unwrap_or_else(|| pool.typical_completion_tokens());
        each.saturating_mul(self.choices)
    }

    /// Tokens of the prompt and of the longest choices of a candidate.
    fn tokens(&self, chain: &Chain) -> u64 {
        let choices = chain.pools().iter().map(|pool| self.completion(pool));
        self.prompt_tokens
            .saturating_add(choices.max().unwrap_or(0))
    }

    /// What the dearest candidate would cost, micro-units; those without a
    /// price cost nothing.
    fn cost(&self, chain: &Chain, accounts: &Accounts) -> u64 {
        let costs = chain.pools().iter().filter_map(|pool| {
            let prices = accounts.prices(pool.model())?;
            let quantities = Quantities {
                tokens_known: true,
                prompt: Tokens(self.prompt_tokens),
                completion: Tokens(self.completion(pool)),
                ..self.quantities
            };
            pricing::cost(&prices, &quantities)
        });
        costs.max().unwrap_or_default().0
    }

    fn with_need<T>(
        &self,
        chain: &Chain,
        accounts: &Accounts,
        then: impl FnOnce(&Demand<'_>) -> T,
    ) -> T {
        let cost = || self.cost(chain, accounts);
        then(&Demand {
            at: self.at,
            tokens: self.tokens(chain),
            requested_tokens: self.requested_tokens(),
            cost: LazyCell::new(&cost),
        })
    }

    fn requested_tokens(&self) -> u64 {
        let most = self.max_tokens.filter(|_| self.has_completion);
        let all = most.unwrap_or(0).saturating_mul(self.choices);
        self.prompt_tokens.saturating_add(all)
    }
}

/// Takes what a request may need from every account that it counts for, and
/// leaves in the chain the models of which this caller may have some.
///
/// # Errors
/// Nothing is taken, then: 400 for what can never be had, 429 for a rate or a
/// slot, 402 for a budget, in this order.
pub fn reserve(
    caller: &Caller,
    chain: &mut Chain,
    claim: &Cost,
    accounts: &Accounts,
) -> Result<(Reservation, RateLimits), Refusal> {
    let Some(identified) = caller.identified() else {
        return Ok(Default::default());
    };
    let shared = identified.accounts();
    let mine = &identified.principal;
    if !mine.limits_models() && shared.iter().all(Option::is_none) {
        return Ok(Default::default());
    }
    if !mine.limits_models() {
        return claim.with_need(chain, accounts, |need| {
            let mut rates = RateLimits::default();
            let holds = take_all(shared.into_iter().flatten(), need, &mut rates)?;
            Ok((Reservation::of(holds), rates))
        });
    }
    let candidates = chain.clone();
    claim.with_need(&candidates, accounts, |need| {
        let mut rates = RateLimits::default();
        let mut holds = take_all(shared.into_iter().flatten(), need, &mut rates)?;
        let mut refusals = Vec::new();
        chain.retain(|pool| {
            let Some(account) = mine.account_for(pool.model()) else {
                return true;
            };
            account.record_request(need.tokens, need.at);
            match AccountHold::take(account, need, &mut rates) {
                Ok(hold) => holds.push(hold),
                Err(refusal) => {
                    refusals.push(refusal);
                    return false;
                }
            }
            true
        });
        let reservation = Reservation::of(holds);
        // Any of them would do: the client is told what can be had first.
        let grants = refusals.into_iter().min_by_key(Refusal::prospect);
        if let Some(refusal) = grants.filter(|_| chain.pools().is_empty()) {
            reservation.cancel(need.at);
            return Err(refusal);
        }
        Ok((reservation, rates))
    })
}

fn take_all<'a>(
    accounts: impl Iterator<Item = &'a Arc<Account>> + Clone,
    need: &Demand<'_>,
    rates: &mut RateLimits,
) -> Result<AccountHolds, Refusal> {
    let mut holds = AccountHolds::new();
    for account in accounts.clone() {
        account.record_request(need.tokens, need.at);
    }
    for account in accounts.clone() {
        match AccountHold::take(account, need, rates) {
            Ok(hold) => holds.push(hold),
            Err(refusal) => {
                Reservation::of(holds).cancel(need.at);
                // Of several reasons the client is told the one that matters.
                let refusals = accounts.filter_map(|account| check(account, need).err());
                let grants = refusals.min_by_key(Refusal::precedence);
                return Err(grants.unwrap_or(refusal));
            }
        }
    }
    Ok(holds)
}

#[cfg(test)]
mod tests;
