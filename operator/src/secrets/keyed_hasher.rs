//! A hash that tells nothing to whoever does not hold the encryption key.

use std::fmt;

use ring::hmac::{Context, HMAC_SHA256, Key, sign};

use super::SecretValue;

/// Keeps this use of the encryption key apart from every other.
const PURPOSE: &[u8] = b"fastllm.io/operator/config-hash/v1";
/// Bytes of the code that are shown: 128 bits.
const SHOWN: usize = 16;

/// A keyed hash. The key is derived from the deployment's own encryption key,
/// so no Secret has to be written, and a low-entropy password cannot be guessed
/// from an annotation.
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

    /// Hash of a list of parts. Each part goes in behind its length, so that no
    /// two lists give the same bytes.
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
