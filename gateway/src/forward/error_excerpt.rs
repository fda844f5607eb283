//! The text of an upstream's error for the operator's log.

use std::collections::HashSet;

use fastllm_engine::Backend;

/// How many bytes of an error are logged.
const MAX_EXCERPT_BYTES: usize = 1 << 10;

/// A word with this many bytes of a secret in a row is omitted. Upstreams repeat
/// parts of a rejected key.
const MIN_REVEALING_BYTES: usize = 4;

const OMITTED: &str = "[redacted]";

/// The beginning of an error's text on one line. Words that contain part of the
/// backend's credential or of a header value are omitted.
pub(super) fn of(text: &[u8], backend: &Backend) -> String {
    let auth = backend.auth().into_iter();
    let secrets = auth.chain(backend.extra_headers());
    redacted(text, secrets.map(|(_, value)| value.as_bytes()))
}

fn redacted<'s>(text: &[u8], secrets: impl Iterator<Item = &'s [u8]>) -> String {
    let mut parts = HashSet::new();
    for secret in secrets {
        if secret.len() < MIN_REVEALING_BYTES {
            parts.insert(secret);
        }
        parts.extend(secret.windows(MIN_REVEALING_BYTES));
    }
    let reveals = |word: &str| {
        let bytes = word.as_bytes();
        let mut windows = (1..=MIN_REVEALING_BYTES).flat_map(|size| bytes.windows(size));
        windows.any(|window| parts.contains(window))
    };
    let text = text.get(..MAX_EXCERPT_BYTES).unwrap_or(text);
    let text = String::from_utf8_lossy(text);
    let mut line = String::with_capacity(text.len());
    for word in text.split_inclusive(is_delimiter) {
        let (word, delimiter) = match word.char_indices().next_back() {
            Some((at, last)) if is_delimiter(last) => (word.get(..at).unwrap_or_default(), last),
            _ => (word, ' '),
        };
        line.push_str(if reveals(word) { OMITTED } else { word });
        line.push(if delimiter.is_control() {
            ' '
        } else {
            delimiter
        });
    }
    line.truncate(line.trim_end().len());
    line
}

fn is_delimiter(character: char) -> bool {
    character.is_whitespace() || character.is_control() || "\"'`\\,;:=<>(){}[]".contains(character)
}

#[cfg(test)]
mod tests {
    use super::redacted;

    fn excerpt(text: &str, secrets: &[&str]) -> String {
        redacted(
            text.as_bytes(),
            secrets.iter().map(|secret| secret.as_bytes()),
        )
    }

    #[test]
    fn words_with_part_of_a_secret_are_omitted() {
        let secrets = ["Bearer sk-proj-0123456789abcdef", "tenant-secret"];
        for (text, shown) in [
            (
                r#"{"error":{"message":"Incorrect API key provided: sk-proj-****cdef."}}"#,
                r#"{"error":{"message":"Incorrect API key provided: [redacted]"}}"#,
            ),
            ("key=0123456789abcdef;", "key=[redacted];"),
            ("no access for tenant-secret", "no access for [redacted]"),
            ("no model x", "no model x"),
            ("", ""),
        ] {
            assert_eq!(excerpt(text, &secrets), shown);
        }
        assert_eq!(
            excerpt("pw abc rejected", &["abc"]),
            "pw [redacted] rejected"
        );
    }

    #[test]
    fn an_excerpt_is_one_line_of_bounded_length() {
        assert_eq!(excerpt("one\r\n\ttwo\u{1b}[31m\n", &[]), "one   two [31m");
        let long = "word ".repeat(1_000);
        assert!(excerpt(&long, &["abcd"]).len() <= 1_024);
        assert_eq!(excerpt("\u{e9}\u{e9}", &[""]), "\u{e9}\u{e9}");
    }
}
