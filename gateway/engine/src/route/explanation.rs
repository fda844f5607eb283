use fastllm_contract::ModelName;

use crate::virtual_model::RuleSkipped;

/// The reasons of a routing decision, for diagnosis; not computed on the
/// request path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The name is a virtual model.
    pub virtual_model: bool,
    /// The index of the rule whose targets are used; `None` for the default
    /// targets and for a concrete model.
    pub matched_rule: Option<usize>,
    /// Earlier rules that did not match, by index.
    pub skipped_rules: Vec<(usize, RuleSkipped)>,
    /// Models that are not in the chain, in the order of the checks. A model
    /// may be listed several times.
    pub skipped_models: Vec<(ModelName, ModelSkipped)>,
    /// Models of the chain that were moved down.
    pub demoted: Vec<(ModelName, Deprioritized)>,
    /// The last model of the chain is the fallback.
    pub fallback: bool,
}

/// Why a model is not in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelSkipped {
    /// The concrete model does not exist.
    NotServed,
    /// The caller may not use it.
    NotGranted,
    /// No backend accepts new requests.
    NoBackend,
}

impl ModelSkipped {
    /// A stable identifier.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotServed => "not_served",
            Self::NotGranted => "not_granted",
            Self::NoBackend => "no_backend",
        }
    }
}

/// Why a model was moved down, the weaker reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deprioritized {
    /// No backend is available.
    Unavailable,
    /// Prompt and response exceed the context window.
    ContextWindow,
}

impl Deprioritized {
    /// A stable identifier.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::ContextWindow => "context_window",
        }
    }
}
