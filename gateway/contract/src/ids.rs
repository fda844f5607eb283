use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

macro_rules! integer_type {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

integer_type! {
    /// Identity of a principal (a user or a service account) in control's database.
    PrincipalId(u64)
}
integer_type! {
    /// Identity of an API key in control's database.
    KeyId(u64)
}
integer_type! {
    /// Identity of one upstream address of one model, stable across snapshots.
    BackendId(u64)
}
integer_type! {
    /// Identity of a team of principals in control's database.
    TeamId(u64)
}
integer_type! {
    /// Identity of a budget in control's database.
    BudgetId(u64)
}
integer_type! {
    /// Money: millionths of the currency unit.
    Micros(u64)
}
integer_type! {
    /// A count of tokens.
    Tokens(u64)
}
integer_type! {
    /// Microseconds since 1970-01-01T00:00:00Z.
    Timestamp(i64)
}

/// The name of a model as clients spell it: 1 to 256 bytes, no control
/// characters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ModelName(Arc<str>);

/// Why a text is not a [`ModelName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidModelName {
    /// Nothing at all.
    Empty,
    /// Longer than [`ModelName::MAX_BYTES`].
    TooLong,
    /// A control character would break logs and headers.
    ControlCharacter,
}

impl fmt::Display for InvalidModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a model name may not be empty",
            Self::TooLong => "a model name may have at most 256 bytes",
            Self::ControlCharacter => "a model name may not hold control characters",
        })
    }
}

impl std::error::Error for InvalidModelName {}

impl ModelName {
    /// Longest accepted name, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Checks and wraps a name.
    pub fn new(name: &str) -> Result<Self, InvalidModelName> {
        if name.is_empty() {
            Err(InvalidModelName::Empty)
        } else if name.len() > Self::MAX_BYTES {
            Err(InvalidModelName::TooLong)
        } else if name.chars().any(char::is_control) {
            Err(InvalidModelName::ControlCharacter)
        } else {
            Ok(Self(Arc::from(name)))
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for ModelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ModelName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::new(&name).map_err(de::Error::custom)
    }
}

/// SHA-256 of an API key: what is stored and looked up instead of the key.
/// Written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub [u8; 32]);

/// A text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidKeyHash;

impl fmt::Display for InvalidKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key hash is 64 hexadecimal digits")
    }
}

impl std::error::Error for InvalidKeyHash {}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({self})")
    }
}

impl FromStr for KeyHash {
    type Err = InvalidKeyHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(InvalidKeyHash);
        }
        let mut hash = [0u8; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(hash))
    }
}

fn nibble(digit: u8) -> Result<u8, InvalidKeyHash> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(InvalidKeyHash),
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn key_hash_round_trips(bytes in any::<[u8; 32]>()) {
            let hash = KeyHash(bytes);
            prop_assert_eq!(hash.to_string().parse(), Ok(hash));
        }
    }

    #[test]
    fn invalid_key_hash_is_rejected() {
        assert_eq!("".parse::<KeyHash>(), Err(InvalidKeyHash));
        assert_eq!("0".repeat(63).parse::<KeyHash>(), Err(InvalidKeyHash));
        assert_eq!("g".repeat(64).parse::<KeyHash>(), Err(InvalidKeyHash));
        assert_eq!("é".repeat(32).parse::<KeyHash>(), Err(InvalidKeyHash));
    }

    #[test]
    fn model_names_have_bounds() {
        assert_eq!(ModelName::new(""), Err(InvalidModelName::Empty));
        assert_eq!(
            ModelName::new("a\nb"),
            Err(InvalidModelName::ControlCharacter)
        );
        assert_eq!(
            ModelName::new(&"a".repeat(257)),
            Err(InvalidModelName::TooLong)
        );
        assert!(ModelName::new("Qwen/Qwen3-1.7B").is_ok());
    }
}
