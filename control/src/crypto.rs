//! Cryptography: stored credentials, passwords, API keys and session tokens.

mod password;
mod token;
mod vault;

pub(crate) use password::{Passwords, check_policy, hash_now};
pub(crate) use token::{ApiKey, SessionToken, TokenDigest, digest};
pub(crate) use vault::{KeyId, OpenError, SealedCredential, Vault};
