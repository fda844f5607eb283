use fastllm_contract::Metadata;
use fastllm_wire::{Quantities, Usage};

/// What a request used.
#[derive(Debug, Default)]
pub(crate) struct RequestUsage {
    /// The usage object of the response.
    pub(super) reported: Option<Usage>,
    /// Estimated tokens of the part of the response that arrived without a usage
    /// object; `None` if the response has not begun.
    pub(super) received_tokens: Option<u64>,
    /// Set only where something other than tokens was used.
    pub(super) quantities: Option<Box<Quantities>>,
    /// Estimated tokens of the prompt.
    pub(super) prompt_estimate: u64,
    /// The `metadata` of the request.
    pub(super) metadata: Option<Metadata>,
}

/// The usage of a response, as it is cached with the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsageSummary {
    reported: Option<Usage>,
    received_tokens: Option<u64>,
    quantities: Quantities,
}

impl RequestUsage {
    pub(crate) fn set_metadata(&mut self, metadata: Option<Metadata>) {
        self.metadata = metadata;
    }

    pub(crate) fn set_prompt_estimate(&mut self, tokens: u64) {
        self.prompt_estimate = tokens;
    }

    /// Takes the usage object of a response, if it has one.
    pub(crate) fn set_reported(&mut self, usage: Option<Usage>) {
        self.reported = usage.or(self.reported);
    }

    /// Takes the estimated tokens of a response without a usage object.
    pub(crate) fn set_received_tokens(&mut self, tokens: Option<u64>) {
        self.received_tokens = tokens;
    }

    /// Takes quantities other than tokens, as far as they are known.
    pub(crate) fn add_quantities(&mut self, quantities: Quantities) {
        if quantities != Quantities::default() {
            let known = self.quantities.get_or_insert_default();
            **known = quantities.or(**known);
        }
    }

    /// The usage so far.
    pub(crate) fn summary(&self) -> UsageSummary {
        UsageSummary {
            reported: self.reported,
            received_tokens: self.received_tokens,
            quantities: self.quantities(),
        }
    }

    pub(super) fn set_summary(&mut self, summary: UsageSummary) {
        self.reported = summary.reported;
        self.received_tokens = summary.received_tokens;
        self.add_quantities(summary.quantities);
    }

    /// The usage object. Where `counted`, one without completion tokens is none.
    pub(super) fn reported(&self, counted: bool) -> Option<Usage> {
        self.reported
            .filter(|usage| usage.completion_tokens.is_some() || !counted)
    }

    pub(super) fn quantities(&self) -> Quantities {
        self.quantities.as_deref().copied().unwrap_or_default()
    }

    /// Prompt tokens as reported, or else estimated.
    pub(super) fn prompt_tokens(&self) -> u64 {
        self.reported
            .map_or(self.prompt_estimate, |usage| usage.prompt_tokens)
    }
}
