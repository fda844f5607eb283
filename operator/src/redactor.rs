//! Removal of Secret values from texts of other programs.

use std::collections::BTreeMap;

use fastllm_crds::FastllmProxy;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::observe::ReadOutcome;
use crate::secrets::{SecretData, required_references};

/// Maximum size of a text from another program, in bytes.
const MAX_TEXT: usize = 512;
/// Shorter values are part of ordinary words. They are not redacted.
const MIN_VALUE: usize = 4;

/// Removes the Secret values that a resource references from texts of other programs,
/// such as the termination message of a container. `Debug` does not print them.
pub struct Redactor(Vec<String>);

impl Redactor {
    /// Collects the values: also the password in a URL, in both of its forms.
    #[must_use]
    pub fn new(
        proxy: &FastllmProxy,
        secrets: &BTreeMap<String, ReadOutcome<Option<SecretData>>>,
    ) -> Self {
        let mut values = Vec::new();
        for (_, reference) in required_references(proxy, false) {
            let Some(ReadOutcome::Known(Some(data))) = secrets.get(&reference.name) else {
                continue;
            };
            let Some(value) = data.get(&reference.key) else {
                continue;
            };
            let value = String::from_utf8_lossy(value.expose()).into_owned();
            if let Ok(url) = Url::parse(&value)
                && let Some(password) = url.password()
            {
                let decoded = percent_decode_str(password).decode_utf8_lossy();
                values.push(decoded.into_owned());
                values.push(password.to_owned());
            }
            values.push(value);
        }
        values.retain(|value| value.len() >= MIN_VALUE);
        // A value that contains another one is replaced first.
        values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    /// The text on one line, without the values, and at most 512 bytes long.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.0 {
            text = text.replace(value.as_str(), "[redacted]");
        }
        let mut text = text.replace(char::is_control, " ");
        if text.len() > MAX_TEXT {
            text.truncate(text.floor_char_boundary(MAX_TEXT - '…'.len_utf8()));
            text.push('…');
        }
        text
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor(…)")
    }
}

#[cfg(test)]
mod tests {
    use crate::fake_cluster::{FakeCluster, KEY, URL};

    use super::Redactor;

    fn redact(text: &str) -> String {
        let mut cluster = FakeCluster::new();
        cluster.set_secret("db", "uri", "postgres://user:p%40ss-word@db/fastllm");
        cluster.set_secret("db", "name", "fastllm");
        Redactor::new(&cluster.proxy, &cluster.observe().secrets).redact(text)
    }

    #[test]
    fn values_and_passwords_are_removed() {
        for (text, expected) in [
            ("a p@ss-word or p%40ss-word", "a [redacted] or [redacted]"),
            ("postgres://user:p%40ss-word@db/fastllm!", "[redacted]!"),
            ("token canary-token", "token [redacted]"),
            ("fastllm-control: user", "fastllm-control: user"),
        ] {
            assert_eq!(redact(text), expected);
        }
        assert_eq!(redact(&format!("key {KEY}")), "key [redacted]");
        assert_eq!(redact(URL), URL);
    }

    #[test]
    fn texts_are_one_line_and_bounded() {
        assert_eq!(redact("a\r\nb\u{1b}[0m"), "a  b [0m");
        let long = redact(&"é".repeat(1000));
        assert_eq!(long.len(), 511);
        assert!(long.ends_with("é…"));
    }
}
