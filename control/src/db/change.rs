use serde_json::Value;
use sqlx::{PgConnection, PgTransaction};

use super::{Db, DbError};

/// The author of a change and the request that caused it, for the audit record.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    /// `None` for a command on the control plane's host.
    pub(crate) id: Option<i64>,
    /// A copy, because the principal may be deleted.
    pub(crate) name: String,
    /// The request's method, or `COMMAND`.
    pub(crate) action: String,
    /// The request's path, or the command's name.
    pub(crate) target: String,
    /// The address of the client.
    pub(crate) source: Option<String>,
}

/// The operation and the changed fields. Secrets appear as `set` or `cleared`.
#[derive(Debug)]
pub(crate) struct AuditEntry {
    pub(crate) detail: Value,
}

/// A change of the configuration in progress: one transaction that increments the
/// version first.
///
/// Invariant: it can only be committed together with its audit record; dropping it rolls
/// it back. The lock on the version's row serializes changes, so that a check within
/// one still holds when it commits.
pub(crate) struct Change {
    transaction: PgTransaction<'static>,
    actor: Actor,
    version: i64,
}

impl Change {
    pub(crate) async fn begin(db: &Db, actor: Actor) -> Result<Self, DbError> {
        let mut transaction = db.begin().await?;
        // A change that hangs would block all others.
        query!(
            "SELECT set_config('lock_timeout', '5s', true) AS lock, \
                    set_config('statement_timeout', '15s', true) AS statement, \
                    set_config('idle_in_transaction_session_timeout', '15s', true) AS idle"
        )
        .fetch_one(&mut transaction)
        .await?;
        let version = query_scalar!(r#"SELECT bump_config_version() AS "version!""#)
            .fetch_one(&mut transaction)
            .await?;
        Ok(Self {
            transaction,
            actor,
            version,
        })
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    /// Writes the audit record and commits. Returns the new version.
    pub(crate) async fn commit(mut self, entry: AuditEntry) -> Result<u64, DbError> {
        super::audit::insert(&mut self.transaction, &self.actor, &entry).await?;
        self.transaction.commit().await?;
        Ok(self.version.unsigned_abs())
    }
}
