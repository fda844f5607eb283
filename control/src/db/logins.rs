use sqlx::PgConnection;

use super::DbError;

/// The maximum number of known addresses of one name; a further one replaces the oldest.
const MAX_ADDRESSES: i64 = 50;

/// The failed logins of a scope.
pub(crate) struct FailureRow {
    pub(crate) key: Vec<u8>,
    pub(crate) count: i32,
    /// Seconds since the last one.
    pub(crate) seconds: f64,
}

/// The failed logins of these scopes, forgotten ones excepted. Locks their rows, so that
/// concurrent attempts are decided on one after the other.
pub(crate) async fn lock_failures(
    connection: &mut PgConnection,
    keys: &[Vec<u8>],
) -> Result<Vec<FailureRow>, DbError> {
    let rows = query_as!(
        FailureRow,
        r#"SELECT key, count,
                  extract(epoch FROM clock_timestamp() - last_at)::float8 AS "seconds!"
             FROM login_failures
            WHERE key = ANY($1) AND last_at > clock_timestamp() - interval '15 minutes'
            ORDER BY key FOR UPDATE"#,
        keys,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

/// Counts a failed login in each of these scopes.
pub(crate) async fn count_failure(
    connection: &mut PgConnection,
    keys: &[Vec<u8>],
) -> Result<(), DbError> {
    query!(
        "INSERT INTO login_failures AS f (key, count, last_at) \
         SELECT key, 1, clock_timestamp() FROM unnest($1::bytea[]) AS key ORDER BY key \
         ON CONFLICT (key) DO UPDATE SET \
           count = CASE WHEN f.last_at > clock_timestamp() - interval '15 minutes' \
                        THEN least(f.count + 1, 1000000) ELSE 1 END, \
           last_at = EXCLUDED.last_at",
        keys,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Takes one failed login back in each of these scopes, and all of them in `cleared`.
pub(crate) async fn forget_failure(
    connection: &mut PgConnection,
    keys: &[Vec<u8>],
    cleared: &[u8],
) -> Result<(), DbError> {
    // In the same order as other attempts.
    lock_failures(connection, keys).await?;
    query!(
        "UPDATE login_failures SET count = CASE WHEN key = $2 THEN 0 ELSE greatest(count - 1, 0) END \
          WHERE key = ANY($1)",
        keys,
        cleared,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether the name has logged in from the address.
pub(crate) async fn is_known(
    connection: &mut PgConnection,
    name: &[u8],
    address: &[u8],
) -> Result<bool, DbError> {
    let found = query_scalar!(
        r#"SELECT EXISTS (SELECT FROM known_logins
             WHERE name_digest = $1 AND address_digest = $2) AS "known!""#,
        name,
        address,
    )
    .fetch_one(connection)
    .await?;
    Ok(found)
}

/// Records that the name has logged in from the address.
pub(crate) async fn remember(
    connection: &mut PgConnection,
    name: &[u8],
    address: &[u8],
) -> Result<(), DbError> {
    query!(
        "INSERT INTO known_logins (name_digest, address_digest, last_at) VALUES ($1, $2, now()) \
         ON CONFLICT (name_digest, address_digest) DO UPDATE SET last_at = EXCLUDED.last_at",
        name,
        address,
    )
    .execute(&mut *connection)
    .await?;
    query!(
        "DELETE FROM known_logins WHERE name_digest = $1 AND address_digest NOT IN \
         (SELECT address_digest FROM known_logins WHERE name_digest = $1 \
           ORDER BY last_at DESC LIMIT $2)",
        name,
        MAX_ADDRESSES,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes what is forgotten: failures after 15 minutes, addresses after 90 days.
pub(crate) async fn prune(connection: &mut PgConnection) -> Result<u64, DbError> {
    let failures =
        query!("DELETE FROM login_failures WHERE last_at < now() - interval '15 minutes'")
            .execute(&mut *connection)
            .await?;
    let known = query!("DELETE FROM known_logins WHERE last_at < now() - interval '90 days'")
        .execute(connection)
        .await?;
    Ok(failures.rows_affected() + known.rows_affected())
}
