use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use super::DbError;

/// Maximum number of other tokens that are accepted. The ones that expire last count.
const MAX_OTHERS: i64 = 16;

/// A token that other control planes are or were configured with.
pub(crate) struct OtherToken {
    pub(crate) digest: Vec<u8>,
    /// For how many seconds it is accepted; without a limit while one is configured with it.
    pub(crate) seconds: Option<f64>,
}

/// Records the token that this control plane is configured with. All others expire after
/// `grace`, unless they already expire or a control plane that is configured with them
/// records them again.
pub(crate) async fn record(
    connection: &mut PgConnection,
    own: &[u8],
    grace: Duration,
) -> Result<(), DbError> {
    // Two control planes record their tokens one after the other.
    query!("LOCK TABLE proxy_tokens IN SHARE ROW EXCLUSIVE MODE")
        .execute(&mut *connection)
        .await?;
    query!("DELETE FROM proxy_tokens WHERE expires_at <= now()")
        .execute(&mut *connection)
        .await?;
    query!(
        "INSERT INTO proxy_tokens (digest) VALUES ($1) \
         ON CONFLICT (digest) DO UPDATE SET expires_at = NULL \
         WHERE proxy_tokens.expires_at IS NOT NULL",
        own,
    )
    .execute(&mut *connection)
    .await?;
    let grace = PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(grace.as_micros()).unwrap_or(i64::MAX),
    };
    query!(
        "UPDATE proxy_tokens SET expires_at = now() + $2 \
          WHERE digest <> $1 AND expires_at IS NULL",
        own,
        grace,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The other tokens that are accepted.
pub(crate) async fn others(
    connection: &mut PgConnection,
    own: &[u8],
) -> Result<Vec<OtherToken>, DbError> {
    let rows = query_as!(
        OtherToken,
        "SELECT digest, extract(epoch FROM expires_at - now())::float8 AS seconds \
           FROM proxy_tokens WHERE digest <> $1 AND (expires_at IS NULL OR expires_at > now()) \
          ORDER BY expires_at DESC NULLS FIRST LIMIT $2",
        own,
        MAX_OTHERS,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}
