use fastllm_contract::{Timestamp, Tokens, UsageEvent};
use fastllm_engine::pricing::charge;
use fastllm_engine::{ActualUsage, RateLimits, Reservation, Settlement};

/// What is reserved for a request, and the rate limits to report to its client.
#[derive(Debug)]
pub(super) struct ReservedLimits {
    pub(super) reservation: Reservation,
    pub(super) rates: RateLimits,
}

impl ReservedLimits {
    /// Replaces the reserved amounts by the used ones. A rejection by the gateway
    /// releases all of them. Without a response, or without known usage, the rate
    /// limits stay debited. Returns what was added to budgets.
    pub(super) fn settle(
        self,
        rejected: bool,
        event: Option<&UsageEvent>,
        at: Timestamp,
    ) -> Settlement {
        let Self { reservation, .. } = self;
        if rejected {
            reservation.cancel(at);
            return Settlement::default();
        }
        let Some(event) = event.filter(|event| event.refusal.is_none()) else {
            return Settlement::default();
        };
        let (prompt, completion) = (event.prompt_tokens.0, event.completion_tokens.0);
        let tokens = Tokens(prompt.saturating_add(completion));
        let known = event.usage_reported || event.estimated;
        let prices = reservation.prices(&event.model);
        // Images and audio may have a price even if no tokens are counted.
        let cost = charge(event, prices.as_ref()).cost;
        if !known && cost.is_none() {
            return Settlement::default();
        }
        reservation.settle(&ActualUsage {
            model: &event.model,
            tokens: known.then_some(tokens),
            cost,
            at,
        })
    }
}
