use fastllm_contract::Prices;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::accounting::Event;
use crate::db::DbError;
use crate::db::prices::prices;

/// The principal, model and prices of an event.
pub(super) struct ResolvedEvent {
    /// The index of the event.
    pub(super) index: usize,
    pub(super) principal: String,
    pub(super) team_id: Option<i64>,
    pub(super) model_id: i64,
    /// The prices at the time of the request's arrival.
    pub(super) prices: Prices,
}

/// A row of the query's result.
struct ResolvedRow {
    /// Starts at 1.
    number: i64,
    principal: String,
    team_id: Option<i64>,
    model_id: i64,
    input_price_per_mtok: Option<i64>,
    output_price_per_mtok: Option<i64>,
    cached_input_price_per_mtok: Option<i64>,
    cache_write_price_per_mtok: Option<i64>,
    reasoning_price_per_mtok: Option<i64>,
    audio_input_price_per_mtok: Option<i64>,
    audio_output_price_per_mtok: Option<i64>,
    image_price: Option<i64>,
    input_price_per_mchar: Option<i64>,
    audio_price_per_minute: Option<i64>,
}

impl ResolvedRow {
    fn resolved(self) -> Option<ResolvedEvent> {
        Some(ResolvedEvent {
            index: usize::try_from(self.number).ok()?.checked_sub(1)?,
            prices: prices!(self),
            principal: self.principal,
            team_id: self.team_id,
            model_id: self.model_id,
        })
    }
}

/// Finds principals, models and prices of events, including deleted principals and
/// models. Events whose principal or model never existed are omitted.
///
/// If several models had the name, the one that had it at the time of the event
/// applies. For an event from before the model's creation (by the clock of a
/// gateway that is behind), its first prices apply.
pub(super) async fn resolve(
    connection: &mut PgConnection,
    events: &[Event],
) -> Result<Vec<ResolvedEvent>, DbError> {
    let times: Vec<OffsetDateTime> = events.iter().map(|event| event.at).collect();
    let principals: Vec<i64> = events
        .iter()
        .map(|event| i64::try_from(event.usage.principal_id.0).unwrap_or(i64::MAX))
        .collect();
    let models: Vec<String> = events
        .iter()
        .map(|event| event.usage.model.as_str().to_owned())
        .collect();
    let rows = query_as!(
        ResolvedRow,
        r#"SELECT e.number AS "number!", p.name AS "principal!", p.team_id AS "team_id?",
                  m.id AS "model_id!", c.input_price_per_mtok AS "input_price_per_mtok?",
                  c.output_price_per_mtok AS "output_price_per_mtok?",
                  c.cached_input_price_per_mtok AS "cached_input_price_per_mtok?",
                  c.cache_write_price_per_mtok AS "cache_write_price_per_mtok?",
                  c.reasoning_price_per_mtok AS "reasoning_price_per_mtok?",
                  c.audio_input_price_per_mtok AS "audio_input_price_per_mtok?",
                  c.audio_output_price_per_mtok AS "audio_output_price_per_mtok?",
                  c.image_price AS "image_price?",
                  c.input_price_per_mchar AS "input_price_per_mchar?",
                  c.audio_price_per_minute AS "audio_price_per_minute?"
             FROM unnest($1::timestamptz[], $2::bigint[], $3::text[])
                  WITH ORDINALITY AS e (at, principal_id, model, number)
             JOIN LATERAL (SELECT name, team_id FROM principals WHERE id = e.principal_id
                           UNION ALL
                           SELECT name, NULL FROM former_principals WHERE id = e.principal_id
                           LIMIT 1) AS p ON true
             JOIN LATERAL ((SELECT id FROM former_models
                             WHERE name = e.model AND deleted_at > e.at
                             ORDER BY deleted_at LIMIT 1)
                           UNION ALL
                           SELECT id FROM models WHERE name = e.model
                           UNION ALL
                           (SELECT id FROM former_models WHERE name = e.model
                             ORDER BY deleted_at DESC LIMIT 1)
                           LIMIT 1) AS m ON true
             LEFT JOIN LATERAL ((SELECT * FROM model_prices
                                  WHERE model_id = m.id AND valid_from <= e.at
                                  ORDER BY valid_from DESC LIMIT 1)
                                UNION ALL
                                (SELECT * FROM model_prices WHERE model_id = m.id
                                  ORDER BY valid_from LIMIT 1)
                                LIMIT 1) AS c ON true
            ORDER BY e.number"#,
        &times,
        &principals,
        &models,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().filter_map(ResolvedRow::resolved).collect())
}
