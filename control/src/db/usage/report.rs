use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::db::DbError;

/// The grouping of usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Grouping {
    Model,
    Principal,
    /// In UTC.
    Day,
    /// The requested name, if it differs from the model's.
    VirtualModel,
    Key,
    Team,
    Endpoint,
    /// The value of one member of the metadata. Equal numbers are one value however
    /// they are written; a number and its text are two. An event counts once for each
    /// distinct text of a list.
    Metadata(String),
}

impl Grouping {
    fn names(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Model => ("model", None),
            Self::Principal => ("principal", None),
            Self::Day => ("day", None),
            Self::VirtualModel => ("virtual_model", None),
            Self::Key => ("key", None),
            Self::Team => ("team", None),
            Self::Endpoint => ("endpoint", None),
            Self::Metadata(member) => ("metadata", Some(member)),
        }
    }
}

/// Usage of one group.
pub(crate) struct UsageTotal {
    /// The name of the group; `None` for events without a value.
    pub(crate) key: Option<String>,
    /// The value of the metadata in its type.
    pub(crate) value: Option<serde_json::Value>,
    /// Of the principal, key or team.
    pub(crate) id: Option<i64>,
    pub(crate) requests: i64,
    pub(crate) prompt_tokens: i64,
    pub(crate) completion_tokens: i64,
    /// The cost of the priced requests.
    pub(crate) cost_micros: i64,
    pub(crate) saved_cost_micros: i64,
    /// Requests of unknown cost. Rejected requests cost nothing.
    pub(crate) unpriced_requests: i64,
}

/// Sums usage from `since` (inclusive) to `until` (exclusive); most expensive first,
/// then by number of requests.
pub(crate) async fn totals(
    connection: &mut PgConnection,
    grouping: &Grouping,
    since: Option<OffsetDateTime>,
    until: Option<OffsetDateTime>,
    limit: i64,
) -> Result<Vec<UsageTotal>, DbError> {
    let (kind, member) = grouping.names();
    let rows = query_as!(
        UsageTotal,
        r#"WITH sums AS (
               SELECT CASE $1 WHEN 'principal' THEN principal_id WHEN 'key' THEN key_id
                              WHEN 'team' THEN team_id END AS id,
                      CASE $1 WHEN 'model' THEN model WHEN 'virtual_model' THEN requested_model
                              WHEN 'endpoint' THEN endpoint
                              WHEN 'day' THEN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD')
                              WHEN 'metadata' THEN member.value #>> '{}' END AS name,
                      member.value,
                      count(*) AS requests,
                      least(sum(prompt_tokens), 9223372036854775807)::bigint AS prompt_tokens,
                      least(sum(completion_tokens), 9223372036854775807)::bigint
                          AS completion_tokens,
                      least(coalesce(sum(cost_micros), 0), 9223372036854775807)::bigint
                          AS cost_micros,
                      least(coalesce(sum(saved_cost_micros), 0), 9223372036854775807)::bigint
                          AS saved_cost_micros,
                      count(*) FILTER (WHERE cost_micros IS NULL) AS unpriced_requests
                 FROM usage_events
                 LEFT JOIN LATERAL (
                          SELECT DISTINCT CASE jsonb_typeof(item)
                                 WHEN 'number' THEN to_jsonb(trim_scale((item #>> '{}')::numeric))
                                 WHEN 'null' THEN NULL ELSE item END AS value
                            FROM jsonb_array_elements(
                                     CASE jsonb_typeof(metadata -> $2::text) WHEN 'array'
                                     THEN metadata -> $2::text
                                     ELSE jsonb_build_array(metadata -> $2::text) END) AS item)
                          AS member ON $1 = 'metadata'
                WHERE at >= coalesce($3::timestamptz, '-infinity')
                  AND at < coalesce($4::timestamptz, 'infinity')
                GROUP BY 1, 2, 3
                ORDER BY cost_micros DESC, requests DESC, 1, 2, 3
                LIMIT $5)
           SELECT CASE $1 WHEN 'principal' THEN coalesce(p.name, f.name)
                          WHEN 'key' THEN coalesce(k.name, s.id::text)
                          WHEN 'team' THEN coalesce(t.name, s.id::text)
                          ELSE s.name END AS key,
                  s.value, s.id, s.requests AS "requests!", s.prompt_tokens AS "prompt_tokens!",
                  s.completion_tokens AS "completion_tokens!", s.cost_micros AS "cost_micros!",
                  s.saved_cost_micros AS "saved_cost_micros!",
                  s.unpriced_requests AS "unpriced_requests!"
             FROM sums AS s
             LEFT JOIN principals AS p ON $1 = 'principal' AND p.id = s.id
             LEFT JOIN former_principals AS f ON $1 = 'principal' AND f.id = s.id
             LEFT JOIN api_keys AS k ON $1 = 'key' AND k.id = s.id
             LEFT JOIN teams AS t ON $1 = 'team' AND t.id = s.id
            ORDER BY s.cost_micros DESC, s.requests DESC, s.id, s.name, s.value"#,
        kind,
        member,
        since,
        until,
        limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}
