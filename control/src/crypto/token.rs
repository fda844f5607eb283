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

/// SHA-256 of a bearer token of gateways.
#[derive(Clone)]
pub(crate) struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub(crate) fn of(token: &[u8]) -> Self {
        Self(digest(token))
    }

    /// A stored digest; `None` unless it has 32 bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether both are of the same token, in constant time.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
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
    fn digests_are_equal_for_the_same_token_only() {
        let token = TokenDigest::of(b"one");
        assert!(token.is(&TokenDigest::from_bytes(token.as_bytes()).unwrap()));
        for other in [&b""[..], b"on", b"one ", b"two"] {
            assert!(!token.is(&TokenDigest::of(other)));
        }
        assert!(TokenDigest::from_bytes(&[0; 31]).is_none());
    }
}
