use serde_json::Value;
use sqlx::{PgConnection, PgTransaction};

use super::{Db, DbError};

/// Who changes something, and by which request: the audit row's head.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    /// `None` for a command on the control plane's own host.
    pub(crate) id: Option<i64>,
    /// Copied, so that it outlives the principal.
    pub(crate) name: String,
    /// The request's method, or `COMMAND`.
    pub(crate) action: String,
    /// The request's path, or the command's name.
    pub(crate) target: String,
    /// The address that it came from.
    pub(crate) source: Option<String>,
}

/// What was changed: `detail` names the operation and the changed fields;
/// secrets appear as `set` or `cleared`.
#[derive(Debug)]
pub(crate) struct AuditEntry {
    pub(crate) detail: Value,
}

/// A change of the configuration under way: one transaction that raises the
/// version first.
///
/// Invariant: it can only be committed together with its audit row; dropped,
/// it leaves nothing. The version's row lock makes changes serial, so that a
/// check made inside one still holds when it commits.
pub(crate) struct Change {
    transaction: PgTransaction<'static>,
    actor: Actor,
    version: i64,
}

impl Change {
    pub(crate) async fn begin(db: &Db, actor: Actor) -> Result<Self, DbError> {
        let mut transaction = db.pool().begin().await?;
        // A change that hangs would keep all others waiting.
        sqlx::query!(
            "SELECT set_config('lock_timeout', '5s', true) AS lock, \
                    set_config('statement_timeout', '15s', true) AS statement, \
                    set_config('idle_in_transaction_session_timeout', '15s', true) AS idle"
        )
        .fetch_one(&mut *transaction)
        .await?;
        let version = sqlx::query_scalar!(r#"SELECT raise_config_version() AS "version!""#)
            .fetch_one(&mut *transaction)
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

    /// Writes the audit row and commits. Returns the new version.
    pub(crate) async fn commit(mut self, entry: AuditEntry) -> Result<u64, DbError> {
        super::audit::insert(&mut self.transaction, &self.actor, &entry).await?;
        self.transaction.commit().await?;
        Ok(self.version.unsigned_abs())
    }
}
