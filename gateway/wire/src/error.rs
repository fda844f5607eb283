//! The error type of this crate: the reasons to reject a request body.

use thiserror::Error;

/// Why a request body is rejected. `Display` is the message for the client and
/// never contains client input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The body does not begin with an object.
    #[error("the request body must be a JSON object")]
    NotAnObject,
    /// The outermost object violates the JSON grammar.
    #[error("the request body is not valid JSON (near byte {at})")]
    Malformed {
        /// Offset into the body, in bytes.
        at: usize,
    },
    /// The object is followed by something other than white space.
    #[error("unexpected data after the JSON object (at byte {at})")]
    Trailing {
        /// Offset into the body, in bytes.
        at: usize,
    },
    /// The `content-type` is not that of a form that can be parsed.
    #[error(
        "the content-type must be multipart/form-data with one `boundary` of 1 to 70 characters"
    )]
    NotAForm,
    /// The form violates the grammar, or is ambiguous between parsers.
    #[error("the form data is not valid (near byte {at}): {why}")]
    MalformedForm {
        /// Offset into the body, in bytes.
        at: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// A required member is absent.
    #[error("`{member}` is required")]
    Missing {
        /// The member.
        member: &'static str,
    },
    /// A member that the gateway uses occurs twice: engines differ in which one
    /// they use.
    #[error("`{member}` is given more than once")]
    Duplicate {
        /// The member.
        member: &'static str,
    },
    /// A name differs only in case from a member that the gateway uses: some
    /// engines would treat it as that member.
    #[error("a member differs from `{member}` only in upper and lower case")]
    CaseVariant {
        /// The member that it would be treated as.
        member: &'static str,
    },
    /// The value of a member has the wrong type.
    #[error("`{member}` must be {expected}")]
    WrongType {
        /// The member.
        member: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// A string that must not be empty is empty.
    #[error("`{member}` must not be empty")]
    Empty {
        /// The member.
        member: &'static str,
    },
    /// A string is longer than any configurable name.
    #[error("`{member}` is longer than {limit} bytes")]
    TooLong {
        /// The member.
        member: &'static str,
        /// Maximum length of the decoded string, in bytes.
        limit: usize,
    },
}

impl ScanError {
    /// The member that caused the error, for the `param` member of an error
    /// body.
    pub fn member(&self) -> Option<&'static str> {
        match *self {
            Self::NotAnObject
            | Self::Malformed { .. }
            | Self::Trailing { .. }
            | Self::NotAForm
            | Self::MalformedForm { .. } => None,
            Self::Missing { member }
            | Self::Duplicate { member }
            | Self::CaseVariant { member }
            | Self::WrongType { member, .. }
            | Self::Empty { member }
            | Self::TooLong { member, .. } => Some(member),
        }
    }

    /// A stable identifier of the kind, for the `code` member of an error body.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAnObject | Self::Malformed { .. } | Self::Trailing { .. } => "invalid_json",
            Self::NotAForm | Self::MalformedForm { .. } => "invalid_form_data",
            Self::Missing { .. } => "missing_required_parameter",
            Self::Duplicate { .. } | Self::CaseVariant { .. } => "ambiguous_parameter",
            Self::WrongType { .. } => "invalid_type",
            Self::Empty { .. } | Self::TooLong { .. } => "invalid_value",
        }
    }

    /// The HTTP status of the response.
    pub fn status(&self) -> u16 {
        400
    }
}
