//! A hash that reveals nothing without the encryption key.

use std::fmt;

use ring::hmac::{Context, HMAC_SHA256, Key, sign};

use super::SecretValue;

/// Separates this use of the encryption key from any other.
const PURPOSE: &[u8] = b"fastllm.io/operator/config-hash/v1";
/// Number of bytes of the code that are used: 128 bits.
const SHOWN: usize = 16;

/// A keyed hash function. The key is derived from the deployment's encryption key,
/// so no additional Secret is needed, and a weak password cannot be guessed from an
/// annotation.
#[derive(Clone)]
pub struct KeyedHasher(Key, [u8; 32]);

impl KeyedHasher {
    /// Derives the key.
    #[must_use]
    pub fn derive(encryption_key: &SecretValue) -> Self {
        let tag = sign(&Key::new(HMAC_SHA256, encryption_key.expose()), PURPOSE);
        let mut derived = [0; 32];
        derived.copy_from_slice(tag.as_ref());
        Self(Key::new(HMAC_SHA256, &derived), derived)
    }

    /// Hash of a list of parts. Each part is prefixed with its length, so that
    /// different lists do not result in the same input.
    #[must_use]
    pub fn digest(&self, parts: &[&[u8]]) -> String {
        let mut context = Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        hex::encode(&context.sign().as_ref()[..SHOWN])
    }
}

impl PartialEq for KeyedHasher {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Eq for KeyedHasher {}

impl fmt::Debug for KeyedHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedHasher(…)")
    }
}
