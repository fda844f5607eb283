/// Why the query of a request is rejected.
///
/// Invariant: the texts hold no value of a parameter. A name is one that the
/// client sent, checked to be short and printable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuery {
    /// Upstreams could interpret it differently.
    #[error(
        "the query is malformed: expected name=value pairs separated by &, without semicolons \
         and with valid percent-encoding"
    )]
    Malformed,
    /// A parameter that is not forwarded.
    #[error("the query parameter {0} is not supported")]
    Unsupported(Box<str>),
    /// A parameter that is not forwarded, with a name that is not repeated.
    #[error("a query parameter is not supported")]
    Unnamed,
    /// A parameter that carries a credential, and would appear in logs.
    #[error(
        "the query parameter {0} is not accepted: send the API key in the authorization header \
         and replace this one, since addresses are often logged"
    )]
    Credential(Box<str>),
}

impl InvalidQuery {
    /// The stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed => "invalid_query",
            Self::Unsupported(_) | Self::Unnamed => "unsupported_query_parameter",
            Self::Credential(_) => "credential_in_query",
        }
    }

    /// The name of the parameter, if it is repeated.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Unsupported(name) | Self::Credential(name) => Some(name),
            Self::Malformed | Self::Unnamed => None,
        }
    }
}
