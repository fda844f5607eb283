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
}

struct VaultKey {
    id: [u8; KEY_ID_LEN],
    key: LessSafeKey,
}

/// The reason why a sealed credential cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("not a sealed credential of a known version")]
    Malformed,
    #[error("sealed with an encryption key that is not configured")]
    UnknownKey,
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
            id,
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
        })
    }

    /// Seals `secret` for the row identified by `identity`.
    pub(crate) fn seal(&self, identity: &str, secret: &Secret) -> Result<SealedCredential, Error> {
        let mut nonce = [0; NONCE_LEN];
        self.random
            .fill(&mut nonce)
            .map_err(|_| Error::Internal("no random numbers"))?;
        let mut blob = vec![VERSION];
        blob.extend_from_slice(&self.current.id);
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
        let (&version, rest) = header.split_first().ok_or(OpenError::Malformed)?;
        if version != VERSION {
            return Err(OpenError::Malformed);
        }
        let (id, nonce) = rest.split_at(KEY_ID_LEN);
        let key = std::iter::once(&self.current)
            .chain(&self.old)
            .find(|key| key.id == id)
            .ok_or(OpenError::UnknownKey)?;
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

fn associated(key_id: [u8; KEY_ID_LEN], identity: &str) -> Vec<u8> {
    let mut data = vec![VERSION];
    data.extend_from_slice(&key_id);
    data.extend_from_slice(identity.as_bytes());
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222222222222222222222222222";

    #[test]
    fn a_credential_opens_for_its_own_row_only() {
        let vault = Vault::from_hex(ONE, []).unwrap();
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
        let vault = Vault::from_hex(ONE, []).unwrap();
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
        let blob = Vault::from_hex(ONE, [])
            .unwrap()
            .seal("row", &Secret::new("v"))
            .unwrap();
        let rotated = Vault::from_hex(TWO, [ONE]).unwrap();
        assert_eq!(rotated.open("row", &blob).unwrap().expose(), "v");
        let fresh = rotated.seal("row", &Secret::new("w")).unwrap();
        let without_old = Vault::from_hex(TWO, []).unwrap();
        assert_eq!(without_old.open("row", &fresh).unwrap().expose(), "w");
        assert_eq!(without_old.open("row", &blob), Err(OpenError::UnknownKey));
    }

    #[test]
    fn the_error_for_an_invalid_key_does_not_contain_it() {
        let error = Vault::from_hex("canary-not-hex", [])
            .map(|_| ())
            .unwrap_err();
        assert!(!error.to_string().contains("canary"));
    }
}
