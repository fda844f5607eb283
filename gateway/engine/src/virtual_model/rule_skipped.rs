/// Why a rule does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleSkipped {
    /// The principal is not listed.
    Principal,
    /// The caller has none of the roles.
    Role,
    /// The prompt is too small or too large.
    PromptTokens,
    /// The token limit is too low, too high or missing.
    MaxTokens,
    /// The request is streamed, or is not.
    Stream,
    /// A header field is missing or has another value.
    Header,
    /// The used share of the budget is out of bounds or unknown.
    Budget,
    /// Outside of the time of day.
    TimeOfDay,
    /// Not on a listed weekday.
    Weekday,
    /// The class of the prompt does not match.
    Class,
    /// All its targets are too busy.
    Busy,
    /// All conditions match, but the caller can use none of the targets.
    NoUsableTarget,
}

impl RuleSkipped {
    /// A stable identifier.
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
