use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use fastllm_contract::Secret;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Error;

/// The minimum length of a password, in characters.
const MIN_CHARACTERS: usize = 8;
/// The maximum length of a password, in bytes. Bounds the cost of hashing.
const MAX_BYTES: usize = 1024;
/// The maximum number of concurrent hashes: each uses 19 MiB and one core.
const PARALLEL: usize = 2;
/// How long a login waits for a slot before it is rejected.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);

/// A password that is too short or too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PasswordPolicyError {
    /// Too few characters.
    #[error("a password needs at least {MIN_CHARACTERS} characters")]
    TooShort,
    /// Too many bytes.
    #[error("a password may have at most {MAX_BYTES} bytes")]
    TooLong,
}

/// Checks a new password against the policy.
pub(crate) fn check_policy(password: &Secret) -> Result<(), PasswordPolicyError> {
    if password.expose().chars().count() < MIN_CHARACTERS {
        Err(PasswordPolicyError::TooShort)
    } else if password.expose().len() > MAX_BYTES {
        Err(PasswordPolicyError::TooLong)
    } else {
        Ok(())
    }
}

/// Argon2id with 19 MiB, 2 passes, 1 lane.
fn hasher() -> Result<Argon2<'static>, Error> {
    let params = Params::new(19 * 1024, 2, 1, None)
        .map_err(|_| Error::Internal("unusable Argon2 parameters"))?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// Hashes on the calling thread, for commands and blocking threads.
pub(crate) fn hash_now(password: &Secret) -> Result<String, Error> {
    let failed = || Error::Internal("the password cannot be hashed");
    let mut salt = [0u8; 16];
    SystemRandom::new().fill(&mut salt).map_err(|_| failed())?;
    let salt = SaltString::encode_b64(&salt).map_err(|_| failed())?;
    hasher()?
        .hash_password(password.expose().as_bytes(), &salt)
        .map(|hash| hash.to_string())
        .map_err(|_| failed())
}

fn verify_now(password: &Secret, hash: &str) -> bool {
    let Ok(parsed) = PasswordHash::new(hash) else {
        return false;
    };
    hasher().is_ok_and(|argon2| {
        argon2
            .verify_password(password.expose().as_bytes(), &parsed)
            .is_ok()
    })
}

/// A permit to hash one password; released when dropped.
pub(crate) struct HashSlot {
    _permit: OwnedSemaphorePermit,
}

impl HashSlot {
    /// Runs `work` on a blocking thread. The slot moves into it, so that the slot is
    /// occupied until the work ends even if the caller is cancelled.
    async fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, Self), Error> {
        tokio::task::spawn_blocking(move || (work(), self))
            .await
            .map_err(|_| Error::Internal("a hashing thread panicked"))
    }
}

/// Hashes and verifies passwords on blocking threads with bounded concurrency, so
/// that many logins do not occupy all cores.
pub(crate) struct Passwords {
    slots: Arc<Semaphore>,
    /// Verified for unknown names, so that they take as long as known names.
    dummy: String,
}

impl Passwords {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            slots: Arc::new(Semaphore::new(PARALLEL)),
            dummy: hash_now(&Secret::new("nobody's password"))?,
        })
    }

    /// Waits for a slot; `None` after a timeout.
    pub(crate) async fn slot(&self) -> Option<HashSlot> {
        let slot = Arc::clone(&self.slots).acquire_owned();
        let slot = tokio::time::timeout(SLOT_TIMEOUT, slot).await.ok()?.ok()?;
        Some(HashSlot { _permit: slot })
    }

    /// Hashes a new password.
    pub(crate) async fn hash(&self, slot: HashSlot, password: Secret) -> Result<String, Error> {
        let (hash, _slot) = slot.blocking(move || hash_now(&password)).await?;
        hash
    }

    /// Whether `password` is the one of `hash`; an absent hash costs as much
    /// and is never right. The slot comes back, so that the caller can take
    /// note of the outcome before the next attempt gets one.
    pub(crate) async fn verify(
        &self,
        slot: HashSlot,
        password: Secret,
        hash: Option<String>,
    ) -> Result<(bool, HashSlot), Error> {
        let known = hash.is_some();
        let hash = hash.unwrap_or_else(|| self.dummy.clone());
        slot.blocking(move || verify_now(&password, &hash) && known)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_right_password_of_somebody_is_right() {
        let passwords = Passwords::new().unwrap();
        let slot = passwords.slot().await.unwrap();
        let hash = passwords.hash(slot, Secret::new("correct horse"));
        let hash = hash.await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        let verify = async |text: &str, hash: Option<&String>| {
            let slot = passwords.slot().await.unwrap();
            let verified = passwords.verify(slot, Secret::new(text), hash.cloned());
            verified.await.unwrap().0
        };
        assert!(verify("correct horse", Some(&hash)).await);
        assert!(!verify("wrong horse", Some(&hash)).await);
        assert!(!verify("nobody's password", None).await);
    }

    #[test]
    fn the_policy_counts_characters() {
        assert_eq!(
            check_policy(&Secret::new("ä".repeat(7))),
            Err(PasswordPolicyError::TooShort)
        );
        assert_eq!(check_policy(&Secret::new("ä".repeat(8))), Ok(()));
        assert_eq!(
            check_policy(&Secret::new("a".repeat(1025))),
            Err(PasswordPolicyError::TooLong)
        );
    }
}
