use fastllm_contract::{Timestamp, Tokens, UsageEvent};
use fastllm_engine::pricing::charge;
use fastllm_engine::{ActualUsage, RateLimits, Reservation};

/// What a request has taken, and what its client is told of it.
#[derive(Debug)]
pub(super) struct ReservedLimits {
    pub(super) reservation: Reservation,
    pub(super) rates: RateLimits,
}

impl ReservedLimits {
    /// Puts what was used in the place of what was taken. A refusal by the
    /// gateway gives all of it back; what an upstream never answered, or not to
    /// be known what it used, leaves the rates debited.
    pub(super) fn settle(self, rejected: bool, event: Option<&UsageEvent>, at: Timestamp) {
        let Self { reservation, .. } = self;
        if rejected {
            return reservation.cancel(at);
        }
        let Some(event) = event.filter(|event| event.refusal.is_none()) else {
            return;
        };
        let (prompt, completion) = (event.prompt_tokens.0, event.completion_tokens.0);
        let tokens = Tokens(prompt.saturating_add(completion));
        let known = event.usage_reported || event.estimated;
        let prices = reservation.prices(&event.model);
        // Images and sound may have a price where nobody counts tokens.
        let cost = charge(event, prices.as_ref()).cost;
        if known || cost.is_some() {
            reservation.settle(&ActualUsage {
                model: &event.model,
                tokens: known.then_some(tokens),
                cost,
                at,
            });
        }
    }
}
