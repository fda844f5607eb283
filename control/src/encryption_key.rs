//! The check that this control plane has the key that the database's credentials are
//! encrypted with.

use fastllm_contract::Secret;

use crate::Error;
use crate::crypto::{KeyId, Vault};
use crate::db::{Db, DbError, encryption_key};

/// The identity of the check value, as those of the rows of credentials.
const IDENTITY: &str = "encryption-key";
const CHECK: &str = "fastllm";

/// Compares the vault's keys with the database's key and allows the vault to seal. The
/// first control plane determines the key. A current key that differs becomes the
/// database's key if the former one is among the old keys.
///
/// # Errors
/// [`Error::EncryptionKey`] if the database has another key, or a credential that none
/// of the keys opens; errors of the database.
pub(crate) async fn confirm(db: &Db, vault: &Vault) -> Result<(), Error> {
    let mut transaction = db.begin().await?;
    let stored = encryption_key::lock(&mut transaction).await?;
    let headers = encryption_key::headers(&mut transaction).await?;
    let missing = headers.iter().filter_map(|header| KeyId::of(header));
    if let Some(other) = missing.into_iter().find(|id| !vault.has(*id)) {
        return Err(mismatch(other, vault));
    }
    let is_current = match &stored {
        None => false,
        Some(value) => {
            let id =
                KeyId::of(value).ok_or(Error::Internal("the encryption key's row is damaged"))?;
            if vault.open(IDENTITY, value).is_err() {
                return Err(mismatch(id, vault));
            }
            id == vault.current()
        }
    };
    vault.confirm();
    if !is_current {
        let value = vault.seal(IDENTITY, &Secret::new(CHECK))?;
        encryption_key::store(&mut transaction, &value).await?;
        let (key, replaced) = (vault.current(), stored.is_some());
        tracing::info!(%key, replaced, "credentials are encrypted with this key from now on");
    }
    transaction.commit().await.map_err(DbError::from)?;
    Ok(())
}

fn mismatch(database: KeyId, vault: &Vault) -> Error {
    Error::EncryptionKey {
        database: database.to_string(),
        configured: vault.ids(),
    }
}
