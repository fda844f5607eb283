//! Reservations of limits and budgets: of a principal, of one of its models, of a
//! key and of a team.

mod account_hold;
mod reservation;

use std::cell::LazyCell;
use std::sync::Arc;

use fastllm_contract::{Timestamp, Tokens};

use account_hold::{AccountHold, Demand, check};
use reservation::AccountHolds;
pub use reservation::{ActualUsage, Reservation, Settlement};

use crate::accounts::{Account, Accounts};
use crate::caller::Caller;
use crate::pool::Pool;
use crate::pricing::{self, Quantities};
use crate::refusal::{RateLimits, Refusal};
use crate::route::Chain;

/// Accounts that count whatever the model: a key's, a principal's and a team's.
const MAX_SHARED_ACCOUNTS: usize = 3;

/// The estimated cost of a request.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// The time of arrival.
    pub at: Timestamp,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u64,
    /// The token limit of the response, if the client set one.
    pub max_tokens: Option<u64>,
    /// Whether responses of this endpoint have completion tokens.
    pub has_completion: bool,
    /// The number of requested choices.
    pub choices: u64,
    /// Known quantities other than tokens.
    pub quantities: Quantities,
}

impl Cost {
    /// Tokens of all choices by this model: each has the client's limit, else
    /// the default of the model's backends, else the usual size of their
    /// responses.
    fn completion(&self, pool: &Pool) -> u64 {
        if !self.has_completion {
            return 0;
        }
        let each = self
            .max_tokens
            .unwrap_or_else(|| pool.typical_completion_tokens());
        each.saturating_mul(self.choices)
    }

    /// Tokens of the prompt and of the longest response among the candidates.
    fn tokens(&self, chain: &Chain) -> u64 {
        let completions = chain.pools().iter().map(|pool| self.completion(pool));
        self.prompt_tokens
            .saturating_add(completions.max().unwrap_or(0))
    }

    /// The cost of the most expensive candidate, micro-units. Candidates without
    /// prices count as free.
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

    fn with_demand<T>(
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

/// Reserves what a request may need from every account that it counts for, and
/// removes the models from the chain whose limits do not admit it.
///
/// # Errors
/// Nothing stays reserved. 400 if the request can never be admitted, 429 for a rate
/// or concurrency limit, 402 for a budget, in this order.
pub fn reserve(
    caller: &Caller,
    chain: &mut Chain,
    cost: &Cost,
    accounts: &Accounts,
) -> Result<(Reservation, RateLimits), Refusal> {
    let Some(identified) = caller.identified() else {
        return Ok(Default::default());
    };
    let shared = identified.accounts();
    let principal = &identified.principal;
    if !principal.limits_models() && shared.iter().all(Option::is_none) {
        return Ok(Default::default());
    }
    if !principal.limits_models() {
        return cost.with_demand(chain, accounts, |demand| {
            let mut rate_limits = RateLimits::default();
            let holds = take_all(shared.into_iter().flatten(), demand, &mut rate_limits)?;
            Ok((Reservation::of(holds), rate_limits))
        });
    }
    let candidates = chain.clone();
    cost.with_demand(&candidates, accounts, |demand| {
        let mut rate_limits = RateLimits::default();
        let mut holds = take_all(shared.into_iter().flatten(), demand, &mut rate_limits)?;
        let mut refusals = Vec::new();
        chain.retain(|pool| {
            let Some(account) = principal.account_for(pool.model()) else {
                return true;
            };
            account.record_request(demand.tokens, demand.at);
            match AccountHold::take(account, demand, &mut rate_limits) {
                Ok(hold) => holds.push(hold),
                Err(refusal) => {
                    refusals.push(refusal);
                    return false;
                }
            }
            true
        });
        let reservation = Reservation::of(holds);
        // Any candidate would do: the refusal that ends soonest is reported.
        let soonest = refusals.into_iter().min_by_key(Refusal::prospect);
        if let Some(refusal) = soonest.filter(|_| chain.pools().is_empty()) {
            reservation.cancel(demand.at);
            return Err(refusal);
        }
        Ok((reservation, rate_limits))
    })
}

fn take_all<'a>(
    accounts: impl Iterator<Item = &'a Arc<Account>> + Clone,
    demand: &Demand<'_>,
    rate_limits: &mut RateLimits,
) -> Result<AccountHolds, Refusal> {
    let mut holds = AccountHolds::new();
    for account in accounts.clone() {
        account.record_request(demand.tokens, demand.at);
    }
    for account in accounts.clone() {
        match AccountHold::take(account, demand, rate_limits) {
            Ok(hold) => holds.push(hold),
            Err(refusal) => {
                Reservation::of(holds).cancel(demand.at);
                // Of several reasons, the one that takes precedence is reported.
                let refusals = accounts.filter_map(|account| check(account, demand).err());
                let first = refusals.min_by_key(Refusal::precedence);
                return Err(first.unwrap_or(refusal));
            }
        }
    }
    Ok(holds)
}

#[cfg(test)]
mod tests;
