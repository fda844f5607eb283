use http::header::HeaderValue;

use super::SpanIds;

/// The flag of a sampled trace.
const SAMPLED: u8 = 1;

/// The span of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    /// Whether the caller is sampled.
    pub(super) sampled: bool,
}

impl Parent {
    /// The span that a request's `traceparent` fields identify; nothing unless
    /// there is exactly one valid field.
    pub(super) fn of<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let value = values.next()?;
        if values.next().is_some() {
            return None;
        }
        Self::parse(value)
    }

    /// Later versions may have more fields after the flags.
    fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(55)?;
        let [version] = hex(known.get(..2)?)?;
        let dashes = [2, 35, 52].iter().all(|&index| known[index] == b'-');
        let ends = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|&byte| byte == b'-'),
        };
        if !dashes || !ends {
            return None;
        }
        let trace = hex(known.get(3..35)?)?;
        let span = hex(known.get(36..52)?)?;
        let [flags] = hex(known.get(53..)?)?;
        (trace != [0; 16] && span != [0; 8]).then_some(Self {
            trace,
            span,
            sampled: flags & SAMPLED != 0,
        })
    }
}

/// Decodes lower-case hexadecimal digits; the standard forbids upper-case
/// digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

/// The header field that identifies a sampled span.
pub(super) fn header(ids: &SpanIds) -> HeaderValue {
    let (trace, span) = (u128::from_be_bytes(ids.trace), u64::from_be_bytes(ids.span));
    HeaderValue::try_from(format!("00-{trace:032x}-{span:016x}-{SAMPLED:02x}"))
        .unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::Parent;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parsed(text: &str) -> Option<Parent> {
        Parent::parse(text.as_bytes())
    }

    #[test]
    fn the_lowest_flag_bit_is_the_sampling_decision() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("03", true)] {
            let parent = parsed(&format!("00-{TRACE}-{SPAN}-{flags}")).unwrap();
            assert_eq!(parent.sampled, sampled, "{flags}");
            assert_eq!(parent.trace[..2], [0x0a, 0xf7]);
            assert_eq!(parent.span[7], 0x31);
        }
    }

    #[test]
    fn later_versions_are_accepted_and_invalid_fields_rejected() {
        assert!(parsed(&format!("01-{TRACE}-{SPAN}-01")).is_some());
        assert!(parsed(&format!("01-{TRACE}-{SPAN}-01-more")).is_some());
        for text in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{}-01", "é".repeat(8)),
        ] {
            assert_eq!(parsed(&text), None, "{text}");
        }
    }

    #[test]
    fn two_traceparent_fields_are_ignored() {
        let value = format!("00-{TRACE}-{SPAN}-01");
        let of = |count| Parent::of(std::iter::repeat_n(value.as_bytes(), count));
        assert_eq!(of(0), None);
        assert!(of(1).is_some());
        assert_eq!(of(2), None);
    }
}
