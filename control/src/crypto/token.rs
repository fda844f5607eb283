use fastllm_contract::{KeyHash, Secret};
use ring::digest::{SHA256, digest as ring_digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use crate::Error;

/// SHA-256.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(ring_digest(&SHA256, bytes).as_ref());
    hash
}

fn random_hex() -> Result<String, Error> {
    let mut bytes = [0u8; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::Internal("no random numbers"))?;
    Ok(hex::encode(bytes))
}

/// A new API key: `sk-` and 64 hexadecimal digits. Only its hash and prefix
/// are stored.
pub(crate) struct ApiKey {
    /// Shown once.
    pub(crate) plaintext: Secret,
    /// Stored and looked up.
    pub(crate) hash: KeyHash,
    /// The first 11 characters, shown in lists.
    pub(crate) prefix: String,
}

impl ApiKey {
    pub(crate) fn generate() -> Result<Self, Error> {
        let text = format!("sk-{}", random_hex()?);
        Ok(Self {
            hash: KeyHash(digest(text.as_bytes())),
            prefix: text.chars().take(11).collect(),
            plaintext: Secret::new(text),
        })
    }
}

/// A new session's token: `sess-` and 64 hexadecimal digits.
pub(crate) struct SessionToken {
    /// The value of the cookie.
    pub(crate) plaintext: Secret,
    /// Stored.
    pub(crate) hash: [u8; 32],
}

impl SessionToken {
    pub(crate) fn generate() -> Result<Self, Error> {
        let text = format!("sess-{}", random_hex()?);
        Ok(Self {
            hash: digest(text.as_bytes()),
            plaintext: Secret::new(text),
        })
    }
}

/// The bearer tokens accepted from gateways. There may be several, so that a token
/// can be replaced without interruption.
pub(crate) struct TokenSet(Vec<[u8; 32]>);

impl TokenSet {
    pub(crate) fn new<'a>(tokens: impl IntoIterator<Item = &'a Secret>) -> Self {
        let digests = tokens
            .into_iter()
            .map(|token| digest(token.expose().as_bytes()));
        Self(digests.collect())
    }

    /// Whether `presented` is one of the tokens, in constant time.
    pub(crate) fn contains(&self, presented: &[u8]) -> bool {
        let presented = digest(presented);
        self.0
            .iter()
            .fold(subtle::Choice::from(0), |found, token| {
                found | token.ct_eq(&presented)
            })
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_documented_format() {
        let key = ApiKey::generate().unwrap();
        let text = key.plaintext.expose();
        assert_eq!(text.len(), 67);
        assert!(text.starts_with(&key.prefix) && key.prefix.len() == 11);
        assert_eq!(key.hash.0, digest(text.as_bytes()));
        assert_eq!(
            SessionToken::generate().unwrap().plaintext.expose().len(),
            69
        );
    }

    #[test]
    fn only_the_tokens_of_the_set_are_accepted() {
        let tokens = TokenSet::new(&[Secret::new("one"), Secret::new("two")]);
        assert!(tokens.contains(b"one") && tokens.contains(b"two"));
        assert!(!tokens.contains(b"") && !tokens.contains(b"on") && !tokens.contains(b"three"));
    }
}
