use fastllm_contract::ModelName;

/// Why routing decided as it did, for whoever asks: the request path does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The name stands for other models.
    pub virtual_model: bool,
    /// The rule whose targets are used, counted from 0; nothing for the
    /// default targets and for a concrete name.
    pub matched_rule: Option<usize>,
    /// Rules before it, counted from 0.
    pub skipped_rules: Vec<(usize, RuleSkipped)>,
    /// Models that are not in the chain, in the order in which they were
    /// looked at. One may stand there several times.
    pub skipped_models: Vec<(ModelName, ModelSkipped)>,
    /// Models of the chain that are behind their place.
    pub demoted: Vec<(ModelName, Deprioritized)>,
    /// The last model of the chain is there as the fallback.
    pub fallback: bool,
}

/// Why a rule does not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleSkipped {
    /// Somebody else asks.
    Principal,
    /// The caller has none of the roles.
    Role,
    /// The prompt is too small or too large.
    PromptTokens,
    /// The ceiling is too low, too high or not there.
    MaxTokens,
    /// Streamed, or not.
    Stream,
    /// A header is not there, or is another.
    Header,
    /// Too much or too little of the budget is used, or there is none.
    Budget,
    /// Not the time of day.
    TimeOfDay,
    /// Not the day of the week.
    Weekday,
    /// The prompt is not of this class.
    Class,
    /// Its targets are as busy as they may be.
    Busy,
    /// Everything holds, but this caller can use none of its targets.
    NoUsableTarget,
}

impl RuleSkipped {
    /// A stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Role => "role",
            Self::PromptTokens => "prompt_tokens",
            Self::MaxTokens => "max_tokens",
            Self::Stream => "stream",
            Self::Header => "header",
            Self::Budget => "budget",
            Self::TimeOfDay => "time_of_day",
            Self::Weekday => "weekday",
            Self::Class => "class",
            Self::Busy => "busy",
            Self::NoUsableTarget => "no_usable_target",
        }
    }
}

/// Why a model is not in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelSkipped {
    /// No such concrete model.
    NotServed,
    /// The caller may not use it.
    NotGranted,
    /// It has no backend that takes new requests.
    NoBackend,
}

impl ModelSkipped {
    /// A stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotServed => "not_served",
            Self::NotGranted => "not_granted",
            Self::NoBackend => "no_backend",
        }
    }
}

/// Why a model is behind its place, the better reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deprioritized {
    /// None of its backends can be expected to answer.
    Unavailable,
    /// Prompt and answer do not fit into its context window.
    ContextWindow,
}

impl Deprioritized {
    /// A stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::ContextWindow => "context_window",
        }
    }
}
