use sqlx::migrate::MigrateError;
use sqlx::{Executor, PgConnection};

use super::{Db, DbError};

/// An arbitrary number that identifies the advisory lock of migrations.
const LOCK: i64 = 0x6661_7374_6c6c_6d00;

/// The migrator's statements are kept on the server, whose connection other clients may
/// have used before or use later, behind a transaction pooler.
const FORGET: &str = "DEALLOCATE ALL";

/// Migrates the schema to this release in one transaction, and checks that the
/// schema supports this release.
///
/// The lock is scoped to the transaction, because a connection pooler may share
/// sessions. A newer schema is accepted if `schema_info` allows this release.
pub(crate) async fn migrate(db: &Db) -> Result<(), MigrationError> {
    let mut transaction = db.begin().await?;
    (&mut *transaction)
        .execute(FORGET)
        .await
        .map_err(DbError::from)?;
    query!("SELECT pg_advisory_xact_lock($1)", LOCK)
        .execute(&mut transaction)
        .await
        .map_err(DbError::from)?;
    let mut migrations = sqlx::migrate!("../migrations");
    migrations.set_locking(false).set_ignore_missing(true);
    migrations
        .run_direct(None, &mut *transaction, false)
        .await
        .map_err(failure)?;
    check_oldest_binary(&mut transaction).await?;
    (&mut *transaction)
        .execute(FORGET)
        .await
        .map_err(DbError::from)?;
    transaction.commit().await.map_err(DbError::from)?;
    Ok(())
}

/// Why the schema is not usable.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The database failed before or after the migrations.
    #[error("database")]
    Database(#[from] DbError),
    /// A migration failed.
    #[error("database: migration {version} failed")]
    Migration {
        /// The version of the migration.
        version: i64,
        /// The reason.
        source: DbError,
    },
    /// The schema's migrations do not fit those of this release.
    #[error("database")]
    Schema(#[source] MigrateError),
    /// A newer release that does not support this one migrated the database.
    #[error(
        "this binary is release {current}, but the database requires release {oldest} or newer: \
         upgrade, or restore the backup made before the upgrade"
    )]
    TooOld {
        /// The release of this binary.
        current: String,
        /// The oldest release that the schema supports.
        oldest: String,
    },
}

impl MigrationError {
    /// The error of the database if it is temporary: the database is unavailable.
    pub(crate) fn outage(&self) -> Option<&DbError> {
        match self {
            Self::Database(error) | Self::Migration { source: error, .. } => {
                matches!(error, DbError::Unavailable(_)).then_some(error)
            }
            Self::Schema(_) | Self::TooOld { .. } => None,
        }
    }
}

fn failure(error: MigrateError) -> MigrationError {
    match error {
        MigrateError::Execute(error) => DbError::from(error).into(),
        MigrateError::ExecuteMigration(error, version) => MigrationError::Migration {
            version,
            source: error.into(),
        },
        other => MigrationError::Schema(other),
    }
}

async fn check_oldest_binary(connection: &mut PgConnection) -> Result<(), MigrationError> {
    let oldest = query_scalar!("SELECT oldest_binary FROM schema_info")
        .fetch_one(connection)
        .await
        .map_err(DbError::from)?;
    let current = env!("CARGO_PKG_VERSION");
    if release(current) < release(&oldest) {
        return Err(MigrationError::TooOld {
            current: current.to_owned(),
            oldest,
        });
    }
    Ok(())
}

/// The numbers of a release. A pre-release is treated as its release.
fn release(version: &str) -> Vec<u64> {
    version
        .split(['-', '+'])
        .next()
        .unwrap_or_default()
        .split('.')
        .map(|number| number.parse().unwrap_or(0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn releases_compare_by_their_numbers() {
        assert!(release("0.9.0") < release("0.10.0"));
        assert!(release("1.0.0-rc.1") == release("1.0.0"));
        assert!(release("1.2.3") > release("1.2"));
    }
}
