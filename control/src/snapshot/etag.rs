use std::fmt;

/// The entity tag of a snapshot: `"<version>-<16 hexadecimal digits of its digest>"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Etag {
    /// The `config_version` of the snapshot.
    pub(crate) version: u64,
    /// Equal digests mean equal content, even if versions differ.
    pub(crate) digest: String,
}

impl Etag {
    /// Parses an `If-None-Match` field; `None` if the tag has another format.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let text = header.trim();
        let text = text.strip_prefix("W/").unwrap_or(text);
        let text = text.strip_prefix('"')?.strip_suffix('"')?;
        let (version, digest) = text.split_once('-')?;
        let well_formed = digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit());
        Some(Self {
            version: version.parse().ok().filter(|_| well_formed)?,
            digest: digest.to_owned(),
        })
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}-{}\"", self.version, self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::Etag;

    #[test]
    fn other_formats_are_ignored() {
        let tag = Etag {
            version: 7,
            digest: "0123456789abcdef".to_owned(),
        };
        assert_eq!(Etag::parse(&tag.to_string()), Some(tag.clone()));
        assert_eq!(Etag::parse(&format!("W/{tag}")), Some(tag));
        for other in ["*", "7", "\"7\"", "\"7-xyz\"", "\"x-0123456789abcdef\"", ""] {
            assert_eq!(Etag::parse(other), None, "{other}");
        }
    }
}
