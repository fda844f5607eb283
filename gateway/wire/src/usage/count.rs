//! Numbers as upstreams write them: besides plain numbers, `12.0` as languages
//! without integers write it, and `"12"` as Protocol Buffers write 64-bit
//! integers in JSON.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The highest plausible number of tokens of a response: more than a hundred
/// times the largest context of a model.
pub const MAX_TOKENS: u64 = 1_000_000_000;

/// A number of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Count {
    /// Absent or `null`.
    #[default]
    Absent,
    /// A whole number up to [`MAX_TOKENS`].
    Known(u64),
    /// Negative, a fraction, above the bound, or not a number.
    Implausible,
}

impl Count {
    /// The number, if it is plausible.
    pub(super) fn known(self) -> Option<u64> {
        match self {
            Self::Known(count) => Some(count),
            Self::Absent | Self::Implausible => None,
        }
    }

    /// This one, or the other if it is absent.
    pub(super) fn or(self, other: Self) -> Self {
        match self {
            Self::Absent => other,
            written => written,
        }
    }

    fn of_integer(count: u64) -> Self {
        if count <= MAX_TOKENS {
            Self::Known(count)
        } else {
            Self::Implausible
        }
    }

    fn of_float(count: f64) -> Self {
        /// [`MAX_TOKENS`] as a float.
        const MAX: f64 = 1e9;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range was checked"
        )]
        if (0.0..=MAX).contains(&count) && count.fract() == 0.0 {
            Self::Known(count as u64)
        } else {
            Self::Implausible
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        Ok(match number {
            Number::Absent => Self::Absent,
            Number::Integer(count) => Self::of_integer(count),
            Number::Float(count) => Self::of_float(count),
            Number::Other => Self::Implausible,
        })
    }
}

/// An amount of money or time: finite, and not negative.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Amount(pub(super) Option<f64>);

impl<'de> Deserialize<'de> for Amount {
    #[expect(
        clippy::cast_precision_loss,
        reason = "amounts that large exceed any bound"
    )]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let amount = match Number::deserialize(deserializer)? {
            Number::Integer(amount) => Some(amount as f64),
            Number::Float(amount) => Some(amount),
            Number::Absent | Number::Other => None,
        };
        Ok(Self(
            amount.filter(|amount| amount.is_finite() && *amount >= 0.0),
        ))
    }
}

/// A value that should be a number.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Absent,
    Integer(u64),
    Float(f64),
    Other,
}

impl Number {
    fn of_text(text: &str) -> Self {
        // Excludes words such as `inf`.
        let is_number = text
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_digit());
        match (text.parse(), text.parse()) {
            (Ok(integer), _) if is_number => Self::Integer(integer),
            (_, Ok(float)) if is_number => Self::Float(float),
            _ => Self::Other,
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl<'de> Visitor<'de> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Number, E> {
        Ok(Number::Integer(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Number, E> {
        Ok(u64::try_from(value).map_or(Number::Other, Number::Integer))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Number, E> {
        Ok(Number::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Number, E> {
        Ok(Number::of_text(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Number, E> {
        Ok(Number::Absent)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Number, E> {
        Ok(Number::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Number, A::Error> {
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Number::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Number, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Number::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, Count, MAX_TOKENS};

    fn count(text: &str) -> Count {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn whole_numbers_are_read_in_each_form() {
        for (text, expected) in [
            ("0", 0),
            ("12", 12),
            ("12.0", 12),
            ("1.2e1", 12),
            ("-0.0", 0),
            ("\"12\"", 12),
            ("\"12.0\"", 12),
            ("1000000000", MAX_TOKENS),
            ("1e9", MAX_TOKENS),
            ("\"1000000000\"", MAX_TOKENS),
        ] {
            assert_eq!(count(text), Count::Known(expected), "{text}");
        }
        assert_eq!(count("null"), Count::Absent);
    }

    #[test]
    fn anything_else_is_implausible() {
        for text in [
            "-1",
            "12.5",
            "1000000001",
            "1e300",
            "1000000000.5",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775808",
            "\"\"",
            "\"12.5\"",
            "\"-1\"",
            "\"+1\"",
            "\" 12\"",
            "\"inf\"",
            "\"NaN\"",
            "\"0x10\"",
            "\"1e400\"",
            "\"18446744073709551616\"",
            "\"many\"",
            "true",
            "[12]",
            "{\"a\":[12,{}]}",
        ] {
            assert_eq!(count(text), Count::Implausible, "{text}");
        }
    }

    #[test]
    fn amounts_are_finite_and_not_negative() {
        for (text, expected) in [
            ("0.5", Some(0.5)),
            ("3", Some(3.0)),
            ("\"0.25\"", Some(0.25)),
            ("-0.5", None),
            ("-1", None),
            ("\"inf\"", None),
            ("\"1e400\"", None),
            ("null", None),
            ("[1]", None),
        ] {
            let amount: Amount = serde_json::from_str(text).unwrap();
            assert_eq!(amount.0, expected, "{text}");
        }
    }
}
