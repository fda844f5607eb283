use std::fmt;

use serde::{Deserialize, Serialize};

/// A credential. It is part of a snapshot, so it can be serialized; `Debug` and
/// `Display` print nothing of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a credential.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The credential, for the header field or comparison that it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn neither_debug_nor_display_tells_the_value() {
        let secret = Secret::new("canary-5f2a");
        assert_eq!(format!("{secret} {secret:?}"), "[secret] [secret]");
    }
}
