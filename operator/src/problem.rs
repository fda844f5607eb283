//! Problems that prevent a resource from being reconciled.

use std::fmt;

use fastllm_crds::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::names::{ADOPT, controller, switch};

/// What a problem concerns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProblemScope {
    /// The resource's own fields.
    Spec,
    /// The Secrets that the resource references.
    Secrets,
    /// The objects that the operator creates for the resource.
    Objects,
}

/// A problem that prevents a resource from being reconciled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// What it concerns.
    pub scope: ProblemScope,
    /// Reason for the conditions.
    pub reason: Reason,
    /// Message for the conditions, with the path of the field.
    pub message: String,
}

impl Problem {
    /// Creates a problem.
    #[must_use]
    pub fn new(scope: ProblemScope, reason: Reason, message: String) -> Self {
        Self {
            scope,
            reason,
            message,
        }
    }

    /// An object with one of the resource's names has another owner.
    #[must_use]
    pub fn not_owned(kind: &str, meta: &ObjectMeta) -> Self {
        let name = meta.name.as_deref().unwrap_or_default();
        let message = match (controller(meta), switch(meta, ADOPT)) {
            (Some(owner), _) => format!(
                "{kind} {name:?} exists and is controlled by {} {:?}; it is left unchanged",
                owner.kind, owner.name
            ),
            (None, Err(value)) => format!(
                "{kind} {name:?} exists and is not owned by this resource; the value {value:?} \
                 of its annotation {ADOPT} is not true or false"
            ),
            (None, Ok(_)) => format!(
                "{kind} {name:?} exists and is not owned by this resource; it is left unchanged \
                 unless it has the annotation {ADOPT}=true"
            ),
        };
        Self::new(ProblemScope::Objects, Reason::NotOwned, message)
    }

    /// Whether the problem is a failed read, which may disappear without a change.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.reason, Reason::ReadFailed | Reason::Forbidden)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
