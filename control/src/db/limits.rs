use std::num::NonZeroU64;

use fastllm_contract::{Limits, Subject};
use sqlx::PgConnection;

use super::subject::{self, Allowance, SubjectId, subject_of};
use super::{DbError, Page};

fn limits(
    requests_per_min: Option<i64>,
    tokens_per_min: Option<i64>,
    concurrency: Option<i64>,
) -> Limits {
    let most = |value: Option<i64>| NonZeroU64::new(value?.unsigned_abs());
    Limits {
        requests_per_min: most(requests_per_min),
        tokens_per_min: most(tokens_per_min),
        concurrency: most(concurrency),
    }
}

fn stored(limit: Option<NonZeroU64>) -> Option<i64> {
    limit.map(|limit| i64::try_from(limit.get()).unwrap_or(i64::MAX))
}

/// Ordered by ID; with `principal_id`, only those of the principal and of its use of
/// single models.
pub(crate) async fn list(
    connection: &mut PgConnection,
    principal_id: Option<i64>,
    page: Page,
) -> Result<Vec<Allowance<Limits>>, DbError> {
    let rows = query!(
        r#"SELECT l.id, l.requests_per_min, l.tokens_per_min, l.concurrency,
                  l.principal_id, p.name AS "principal?", l.model_id, m.name AS "model?",
                  l.key_id, k.name AS "key?", l.team_id, t.name AS "team?"
             FROM limits AS l
             LEFT JOIN principals AS p ON p.id = l.principal_id
             LEFT JOIN models AS m ON m.id = l.model_id
             LEFT JOIN api_keys AS k ON k.id = l.key_id
             LEFT JOIN teams AS t ON t.id = l.team_id
            WHERE ($1::bigint IS NULL OR l.id > $1)
              AND ($2::bigint IS NULL OR l.principal_id = $2)
            ORDER BY l.id LIMIT $3"#,
        page.after,
        principal_id,
        page.limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Allowance {
            id: row.id,
            value: limits(row.requests_per_min, row.tokens_per_min, row.concurrency),
            subject: subject_of!(row as SubjectRow),
        })
        .collect())
}

pub(crate) async fn get(
    connection: &mut PgConnection,
    subject: SubjectId,
) -> Result<Option<Limits>, DbError> {
    let of = subject.columns();
    let row = query!(
        "SELECT requests_per_min, tokens_per_min, concurrency FROM limits \
          WHERE (principal_id = $1 OR key_id = $3 OR team_id = $4) \
            AND model_id IS NOT DISTINCT FROM $2",
        of.principal_id,
        of.model_id,
        of.key_id,
        of.team_id,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| limits(row.requests_per_min, row.tokens_per_min, row.concurrency)))
}

/// Replaces the limits. At least one of them is set.
pub(crate) async fn put(
    connection: &mut PgConnection,
    subject: SubjectId,
    limits: &Limits,
) -> Result<(), DbError> {
    let of = subject.columns();
    let Limits {
        requests_per_min,
        tokens_per_min,
        concurrency,
    } = *limits;
    query!(
        "INSERT INTO limits (principal_id, model_id, key_id, team_id, requests_per_min, \
                tokens_per_min, concurrency) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) \
         ON CONFLICT (principal_id, model_id, key_id, team_id) DO UPDATE \
            SET requests_per_min = $5, tokens_per_min = $6, concurrency = $7",
        of.principal_id,
        of.model_id,
        of.key_id,
        of.team_id,
        stored(requests_per_min),
        stored(tokens_per_min),
        stored(concurrency),
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Idempotent.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    subject: SubjectId,
) -> Result<(), DbError> {
    let of = subject.columns();
    query!(
        "DELETE FROM limits WHERE (principal_id = $1 OR key_id = $3 OR team_id = $4) \
            AND model_id IS NOT DISTINCT FROM $2",
        of.principal_id,
        of.model_id,
        of.key_id,
        of.team_id,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// For the snapshot: those of all subjects other than keys, and of the keys of some
/// shards.
pub(crate) async fn published(
    connection: &mut PgConnection,
    shards: &[i16],
) -> Result<Vec<(Subject, Limits)>, DbError> {
    let rows = query!(
        r#"SELECT l.principal_id, l.model_id, l.key_id, l.team_id, m.name AS "model?",
                  l.requests_per_min, l.tokens_per_min, l.concurrency
             FROM limits AS l LEFT JOIN models AS m ON m.id = l.model_id
            WHERE l.key_id IS NULL
               OR l.key_id IN (SELECT k.id FROM api_keys AS k WHERE k.shard = ANY ($1))"#,
        shards,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let columns = subject_of!(row as SubjectColumns);
            Some((
                subject::published(&columns, row.model.as_deref())?,
                limits(row.requests_per_min, row.tokens_per_min, row.concurrency),
            ))
        })
        .collect())
}
