use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use fastllm_contract::Secret;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::digest;
use crate::Error;

const VERSION: u8 = 3;
const KEY_ID_LEN: usize = 4;
const HEADER_LEN: usize = 1 + KEY_ID_LEN + NONCE_LEN;

/// Seals credentials for the database with AES-256-GCM.
///
/// A sealed credential consists of version (1 byte), key ID (4), nonce (12, random),
/// ciphertext and tag. Version, key ID and the row's identity are authenticated, so
/// that a credential copied to another row cannot be opened.
pub(crate) struct Vault {
    current: VaultKey,
    /// Only used to open.
    old: Vec<VaultKey>,
    random: SystemRandom,
    /// The database was encrypted with one of the keys. Nothing is sealed before that
    /// is known.
    confirmed: AtomicBool,
}

struct VaultKey {
    id: KeyId,
    key: LessSafeKey,
}

/// The ID of an encryption key: the first four bytes of its SHA-256, which do not reveal
/// it. Displayed in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyId([u8; KEY_ID_LEN]);

impl KeyId {
    /// The key of a sealed credential, or of its beginning; `None` for a malformed one.
    pub(crate) fn of(sealed: &[u8]) -> Option<Self> {
        let (&version, rest) = sealed.split_first()?;
        let id = rest.first_chunk::<KEY_ID_LEN>()?;
        (version == VERSION).then_some(Self(*id))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why a sealed credential cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("not a sealed credential of a known version")]
    Malformed,
    #[error("sealed with the encryption key {0}, which is not configured")]
    UnknownKey(KeyId),
    #[error("modified, or sealed for another row")]
    Forged,
}

/// A sealed credential as stored in the database.
pub(crate) type SealedCredential = Vec<u8>;

impl VaultKey {
    fn from_hex(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Config("an encryption key must be 64 hexadecimal digits (32 bytes)".to_owned())
        };
        let bytes: [u8; 32] = hex::decode(text.trim())
            .map_err(|_| wrong())?
            .try_into()
            .map_err(|_| wrong())?;
        let mut id = [0; KEY_ID_LEN];
        id.copy_from_slice(&digest(&bytes)[..KEY_ID_LEN]);
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| wrong())?;
        Ok(Self {
            id: KeyId(id),
            key: LessSafeKey::new(key),
        })
    }
}

impl Vault {
    /// Creates a vault that seals with `current` and opens with `current` and `old`.
    /// Keys are 64 hexadecimal digits.
    pub(crate) fn from_hex<'a>(
        current: &str,
        old: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        Ok(Self {
            current: VaultKey::from_hex(current)?,
            old: old
                .into_iter()
                .map(VaultKey::from_hex)
                .collect::<Result<_, _>>()?,
            random: SystemRandom::new(),
            confirmed: AtomicBool::new(false),
        })
    }

    /// The ID of the key that seals.
    pub(crate) fn current(&self) -> KeyId {
        self.current.id
    }

    /// Whether this key is configured.
    pub(crate) fn has(&self, id: KeyId) -> bool {
        self.keys().any(|key| key.id == id)
    }

    /// The IDs of all keys, the current one first, separated by commas.
    pub(crate) fn ids(&self) -> String {
        let ids: Vec<String> = self.keys().map(|key| key.id.to_string()).collect();
        ids.join(", ")
    }

    fn keys(&self) -> impl Iterator<Item = &VaultKey> {
        std::iter::once(&self.current).chain(&self.old)
    }

    /// Allows sealing.
    pub(crate) fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
    }

    /// Seals `secret` for the row identified by `identity`.
    pub(crate) fn seal(&self, identity: &str, secret: &Secret) -> Result<SealedCredential, Error> {
        if !self.confirmed.load(Ordering::Acquire) {
            return Err(Error::Internal("the encryption key was not checked yet"));
        }
        let mut nonce = [0; NONCE_LEN];
        self.random
            .fill(&mut nonce)
            .map_err(|_| Error::Internal("no random numbers"))?;
        let mut blob = vec![VERSION];
        blob.extend_from_slice(&self.current.id.0);
        blob.extend_from_slice(&nonce);
        let mut sealed = secret.expose().as_bytes().to_vec();
        self.current
            .key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(associated(self.current.id, identity)),
                &mut sealed,
            )
            .map_err(|_| Error::Internal("cannot seal a credential"))?;
        blob.append(&mut sealed);
        Ok(blob)
    }

    /// Opens a credential that was sealed for the same row.
    pub(crate) fn open(&self, identity: &str, blob: &[u8]) -> Result<Secret, OpenError> {
        let (header, sealed) = blob
            .split_at_checked(HEADER_LEN)
            .ok_or(OpenError::Malformed)?;
        let id = KeyId::of(header).ok_or(OpenError::Malformed)?;
        let nonce = header.get(1 + KEY_ID_LEN..).unwrap_or_default();
        let key = self.keys().find(|key| key.id == id);
        let key = key.ok_or(OpenError::UnknownKey(id))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| OpenError::Malformed)?;
        let mut sealed = sealed.to_vec();
        let opened = key
            .key
            .open_in_place(nonce, Aad::from(associated(key.id, identity)), &mut sealed)
            .map_err(|_| OpenError::Forged)?;
        let text = std::str::from_utf8(opened).map_err(|_| OpenError::Malformed)?;
        Ok(Secret::new(text))
    }
}

fn associated(key_id: KeyId, identity: &str) -> Vec<u8> {
    let mut data = vec![VERSION];
    data.extend_from_slice(&key_id.0);
    data.extend_from_slice(identity.as_bytes());
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222222222222222222222222222";

    fn vault<'a>(current: &str, old: impl IntoIterator<Item = &'a str>) -> Vault {
        let vault = Vault::from_hex(current, old).unwrap();
        vault.confirm();
        vault
    }

    #[test]
    fn nothing_is_sealed_before_the_key_was_checked() {
        let vault = Vault::from_hex(ONE, []).unwrap();
        assert!(vault.seal("row", &Secret::new("v")).is_err());
        vault.confirm();
        let blob = vault.seal("row", &Secret::new("v")).unwrap();
        assert_eq!(KeyId::of(&blob), Some(vault.current()));
        assert!(vault.has(vault.current()));
    }

    #[test]
    fn a_credential_opens_for_its_own_row_only() {
        let vault = vault(ONE, []);
        let blob = vault.seal("backend/1", &Secret::new("canary-31")).unwrap();
        assert_eq!(
            vault.open("backend/1", &blob).unwrap().expose(),
            "canary-31"
        );
        assert_eq!(vault.open("backend/2", &blob), Err(OpenError::Forged));
        assert!(!blob.windows(9).any(|window| window == b"canary-31"));
    }

    #[test]
    fn a_change_of_any_byte_is_detected() {
        let vault = vault(ONE, []);
        let blob = vault.seal("row", &Secret::new("value")).unwrap();
        for index in 0..blob.len() {
            let mut forged = blob.clone();
            forged[index] ^= 1;
            assert!(vault.open("row", &forged).is_err(), "byte {index}");
        }
        assert_eq!(vault.open("row", &blob[..5]), Err(OpenError::Malformed));
    }

    #[test]
    fn an_old_key_opens_but_an_unknown_key_does_not() {
        let one = vault(ONE, []);
        let blob = one.seal("row", &Secret::new("v")).unwrap();
        let rotated = vault(TWO, [ONE]);
        assert_eq!(rotated.open("row", &blob).unwrap().expose(), "v");
        let fresh = rotated.seal("row", &Secret::new("w")).unwrap();
        let without_old = vault(TWO, []);
        assert_eq!(without_old.open("row", &fresh).unwrap().expose(), "w");
        assert_eq!(
            without_old.open("row", &blob),
            Err(OpenError::UnknownKey(one.current()))
        );
    }

    #[test]
    fn the_error_for_an_invalid_key_does_not_contain_it() {
        let error = Vault::from_hex("canary-not-hex", [])
            .map(|_| ())
            .unwrap_err();
        assert!(!error.to_string().contains("canary"));
    }
}
