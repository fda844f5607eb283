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

use std::sync::Arc;

use fastllm_contract::{Micros, Timestamp, Tokens};

pub(crate) use account::Account;
pub use accounts::Accounts;
pub use limited::{Limited, Rate, Rates, Scope, What};
use reservation::{Hold, Need, check};
pub use reservation::{Reservation, Used};
pub use spending::Spent;

use crate::identify::Caller;
use crate::pricing::{self, Quantities};
use crate::refusal::Refusal;
use crate::route::{Chain, Pool};

/// What a request is thought to need.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// When it arrived.
    pub at: Timestamp,
    /// Tokens of its prompt, by a rough count.
    pub prompt_tokens: u64,
    /// The most tokens that its answer may have, where the client said so.
    pub max_tokens: Option<u64>,
    /// Answers of this kind have tokens of their own.
    pub has_completion: bool,
}

impl Claim {
    /// Tokens of an answer by this model: what the client allows at most, else
    /// what the model's backends allow by default, else what most of its answers
    /// have had.
    fn completion(&self, pool: &Pool) -> u64 {
        if !self.has_completion {
            return 0;
        }
        self.max_tokens.unwrap_or_else(|| pool.usual_answer())
    }

    /// For the dearest candidate.
    fn need(&self, chain: &Chain, accounts: &Accounts) -> Need {
        let (mut tokens, mut cost) = (0, 0);
        for pool in chain.pools() {
            let completion = self.completion(pool);
            tokens = completion.max(tokens);
            if let Some(prices) = accounts.prices(pool.model()) {
                let quantities = Quantities {
                    tokens_known: true,
                    prompt: Tokens(self.prompt_tokens),
                    completion: Tokens(completion),
                    ..Quantities::default()
                };
                let Micros(price) = pricing::cost(&prices, &quantities).unwrap_or_default();
                cost = price.max(cost);
            }
        }
        let asked_for = self.max_tokens.filter(|_| self.has_completion);
        Need {
            at: self.at,
            tokens: self.prompt_tokens.saturating_add(tokens),
            asked_for: self.prompt_tokens.saturating_add(asked_for.unwrap_or(0)),
            cost,
        }
    }
}

/// Takes what a request may need from every account that it counts for, and
/// leaves in the chain the models of which this caller may have some.
///
/// # Errors
/// Nothing is taken, then: 400 for what can never be had, 429 for a rate or a
/// place, 402 for a budget, in this order.
pub fn reserve(
    caller: &Caller,
    chain: &mut Chain,
    claim: &Claim,
    accounts: &Accounts,
) -> Result<(Reservation, Rates), Refusal> {
    let Some(identified) = caller.identified() else {
        return Ok(Default::default());
    };
    let shared = identified.accounts();
    let mine = &identified.principal;
    if !mine.limits_models() && shared.iter().all(Option::is_none) {
        return Ok(Default::default());
    }
    let need = claim.need(chain, accounts);
    let mut holds = take_all(shared.into_iter().flatten(), &need)?;
    let mut first_refusal = None;
    chain.retain(|pool| {
        let Some(account) = mine.account_for(pool.model()) else {
            return true;
        };
        account.asked(need.tokens, need.at);
        let taken = check(account, &need).and_then(|()| Hold::take(account, &need));
        match taken {
            Ok(hold) => holds.push(hold),
            Err(refusal) => {
                first_refusal.get_or_insert(refusal);
                return false;
            }
        }
        true
    });
    let reservation = Reservation::of(holds);
    if let Some(refusal) = first_refusal.filter(|_| chain.pools().is_empty()) {
        reservation.cancel();
        return Err(refusal);
    }
    let rates = reservation.rates(need.at);
    Ok((reservation, rates))
}

fn take_all<'a>(
    accounts: impl Iterator<Item = &'a Arc<Account>> + Clone,
    need: &Need,
) -> Result<Vec<Hold>, Refusal> {
    for account in accounts.clone() {
        account.asked(need.tokens, need.at);
    }
    let refusals = accounts
        .clone()
        .filter_map(|account| check(account, need).err());
    if let Some(refusal) = refusals.min_by_key(Refusal::precedence) {
        return Err(refusal);
    }
    let mut holds = Vec::new();
    for account in accounts {
        match Hold::take(account, need) {
            Ok(hold) => holds.push(hold),
            Err(refusal) => {
                Reservation::of(holds).cancel();
                return Err(refusal);
            }
        }
    }
    Ok(holds)
}

#[cfg(test)]
mod tests;
