//! The one error of this crate: a request body that is refused.

use thiserror::Error;

/// Why a request body is not forwarded. `Display` is the text for the client;
/// it never repeats what the client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The body does not begin with an object.
    #[error("the request body must be a JSON object")]
    NotAnObject,
    /// The outermost object breaks JSON's grammar.
    #[error("the request body is not valid JSON (near byte {at})")]
    Malformed {
        /// Offset into the body, in bytes.
        at: usize,
    },
    /// Something other than white space follows the object.
    #[error("the request body goes on after its JSON object (at byte {at})")]
    Trailing {
        /// Offset into the body, in bytes.
        at: usize,
    },
    /// The `content-type` is none under which a form can be read.
    #[error(
        "the content-type must be multipart/form-data with one `boundary` of 1 to 70 characters"
    )]
    NotAForm,
    /// The form breaks the grammar, or two parsers could read it in two ways.
    #[error("the form data is not valid (near byte {at}): {why}")]
    MalformedForm {
        /// Offset into the body, in bytes.
        at: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// A member that the gateway needs is absent.
    #[error("`{member}` is required")]
    Missing {
        /// The member.
        member: &'static str,
    },
    /// A member that the gateway acts on is there twice: engines differ in
    /// which one they take.
    #[error("`{member}` is given more than once")]
    Duplicate {
        /// The member.
        member: &'static str,
    },
    /// A name differs from a member that the gateway acts on in case alone:
    /// some engines would take it for that member.
    #[error("a member differs from `{member}` only in upper and lower case")]
    CaseVariant {
        /// The member that it would be taken for.
        member: &'static str,
    },
    /// A member has a value of another type.
    #[error("`{member}` must be {expected}")]
    WrongType {
        /// The member.
        member: &'static str,
        /// What its value may be.
        expected: &'static str,
    },
    /// A string that must say something is empty.
    #[error("`{member}` must not be empty")]
    Empty {
        /// The member.
        member: &'static str,
    },
    /// A string is longer than any name that could be configured.
    #[error("`{member}` is longer than {limit} bytes")]
    TooLong {
        /// The member.
        member: &'static str,
        /// The most bytes that it may have, decoded.
        limit: usize,
    },
}

impl ScanError {
    /// The member at fault, for the `param` field of an error body.
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

    /// A stable name of the kind, for the `code` field of an error body.
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

    /// The HTTP status of the answer.
    pub fn status(&self) -> u16 {
        400
    }
}
