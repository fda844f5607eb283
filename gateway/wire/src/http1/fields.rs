//! The header fields of a head, as ranges of the buffer.

use memchr::memchr;

/// A range in the buffer of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span {
    from: u32,
    to: u32,
}

/// The ranges of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldSpan {
    pub(super) name: Span,
    pub(super) value: Span,
}

impl Span {
    pub(super) fn new(from: usize, to: usize) -> Self {
        // The size limit of heads is far below 4 GiB.
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            from: place(from),
            to: place(to),
        }
    }

    /// The range of `part`, a subslice of `whole`.
    pub(super) fn of(whole: &[u8], part: &[u8]) -> Self {
        let from = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
        Self::new(from, from.saturating_add(part.len()))
    }

    pub(super) fn start(self) -> usize {
        self.from as usize
    }

    pub(super) fn end(self) -> usize {
        self.to as usize
    }

    pub(super) fn on(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start()..self.end()).unwrap_or_default()
    }

    pub(super) fn before(self, buf: &[u8]) -> &[u8] {
        buf.get(..self.start()).unwrap_or_default()
    }
}

/// One header field. The name is a token, the value has no white space at its
/// ends and no control characters other than tabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderField<'b> {
    /// As received; compare with [`HeaderField::is`].
    pub name: &'b [u8],
    /// As received; it may be empty, and need not be UTF-8.
    pub value: &'b [u8],
}

impl HeaderField<'_> {
    /// Whether it has this name, ignoring case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// The fields of a head, in order. Cheap to copy; lookups do not allocate.
#[derive(Debug, Clone, Copy)]
pub struct HeaderFields<'b> {
    pub(super) at: &'b [FieldSpan],
    pub(super) buf: &'b [u8],
    /// `connection` names something other than `close` and `keep-alive`.
    pub(super) names_more: bool,
}

impl<'b> HeaderFields<'b> {
    /// Number of fields.
    pub fn len(self) -> usize {
        self.at.len()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.at.is_empty()
    }

    /// All fields.
    pub fn iter(self) -> impl ExactSizeIterator<Item = HeaderField<'b>> + use<'b> {
        self.at.iter().map(move |at| HeaderField {
            name: at.name.on(self.buf),
            value: at.value.on(self.buf),
        })
    }

    /// The values of all fields with this name, in order.
    pub fn all<'n>(self, name: &'n str) -> impl Iterator<Item = &'b [u8]> + use<'b, 'n> {
        self.iter()
            .filter(move |field| field.is(name))
            .map(|field| field.value)
    }

    /// The value of the first field with this name.
    pub fn get(self, name: &str) -> Option<&'b [u8]> {
        self.all(name).next()
    }

    /// Whether a field is hop-by-hop and must not be forwarded: by its name, or
    /// because `connection` names it.
    pub fn is_hop_by_hop(self, name: &[u8]) -> bool {
        is_hop_by_hop(name)
            || self.names_more
                && self
                    .all("connection")
                    .flat_map(tokens)
                    .any(|token| token.eq_ignore_ascii_case(name))
    }

    /// The fields that may be forwarded: all except hop-by-hop fields and those
    /// that delimit the body, which the writer of the next head adds.
    pub fn end_to_end(self) -> impl Iterator<Item = HeaderField<'b>> + use<'b> {
        self.iter().filter(move |field| {
            !field.name.eq_ignore_ascii_case(b"content-length") && !self.is_hop_by_hop(field.name)
        })
    }
}

/// Whether a field with this name is always hop-by-hop.
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    let known: &[&[u8]] = match name.len() {
        2 => &[b"te"],
        7 => &[b"trailer", b"upgrade"],
        10 => &[b"connection", b"keep-alive"],
        16 => &[b"proxy-connection"],
        17 => &[b"transfer-encoding"],
        18 => &[b"proxy-authenticate"],
        19 => &[b"proxy-authorization"],
        _ => return false,
    };
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The elements of a comma-separated list, without surrounding white space;
/// empty ones are included.
pub(super) fn tokens(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let list = rest?;
        let (token, after) = match memchr(b',', list) {
            Some(at) => (list.get(..at).unwrap_or_default(), list.get(at + 1..)),
            None => (list, None),
        };
        rest = after;
        Some(trim(token))
    })
}

/// Optional white space (OWS) of HTTP: spaces and tabs only.
pub(super) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// Whether this byte may occur in a field value.
pub(super) fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

/// Whether this byte may occur in a field name.
pub(super) fn is_token(byte: u8) -> bool {
    const TOKEN: [bool; 256] = {
        let marks = b"!#$%&'*+-.^_`|~";
        let mut table = [false; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            table[byte as usize] = byte.is_ascii_alphanumeric();
            byte += 1;
        }
        let mut at = 0;
        while at < marks.len() {
            table[marks[at] as usize] = true;
            at += 1;
        }
        table
    };
    TOKEN.get(usize::from(byte)).copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::{is_hop_by_hop, tokens};

    #[test]
    fn a_list_is_split_only_at_commas() {
        let cut = |list: &'static [u8]| tokens(list).collect::<Vec<_>>();
        assert_eq!(
            cut(b"a, b\t,c d"),
            [b"a".as_slice(), b"b", b"c d"].as_slice()
        );
        assert_eq!(cut(b""), [b"".as_slice()]);
        assert_eq!(cut(b",a"), [b"".as_slice(), b"a"]);
    }

    #[test]
    fn hop_by_hop_names_are_case_insensitive() {
        for name in [
            "TE",
            "trailer",
            "Upgrade",
            "CONNECTION",
            "Keep-Alive",
            "proxy-connection",
            "Transfer-Encoding",
            "Proxy-Authenticate",
            "proxy-authorization",
        ] {
            assert!(is_hop_by_hop(name.as_bytes()), "{name}");
        }
        for name in ["", "t", "content-type", "trailers", "accept", "tr"] {
            assert!(!is_hop_by_hop(name.as_bytes()), "{name}");
        }
    }
}
