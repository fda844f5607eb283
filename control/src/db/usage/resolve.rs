use fastllm_contract::Prices;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::accounting::Event;
use crate::db::DbError;
use crate::db::prices::prices;

/// What the database knows of an event's principal and model.
pub(super) struct Known {
    /// Which of the events.
    pub(super) index: usize,
    pub(super) principal: String,
    pub(super) team_id: Option<i64>,
    pub(super) model_id: i64,
    /// Those in force when the request arrived.
    pub(super) prices: Prices,
}

/// A row of the answer.
struct Found {
    /// From 1 on.
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

impl Found {
    fn known(self) -> Option<Known> {
        Some(Known {
            index: usize::try_from(self.number).ok()?.checked_sub(1)?,
            prices: prices!(self),
            principal: self.principal,
            team_id: self.team_id,
            model_id: self.model_id,
        })
    }
}

/// Finds principals, models and prices of events, those that are deleted since
/// included. Events of what never existed are left out.
///
/// A name may have been another model's before: the one that bore it at that
/// time counts. A model that is younger than the event, by the clock of a
/// gateway that is late, has its first prices.
pub(super) async fn resolve(
    connection: &mut PgConnection,
    events: &[Event],
) -> Result<Vec<Known>, DbError> {
    let times: Vec<OffsetDateTime> = events.iter().map(|event| event.at).collect();
    let principals: Vec<i64> = events
        .iter()
        .map(|event| i64::try_from(event.usage.principal_id.0).unwrap_or(i64::MAX))
        .collect();
    let models: Vec<String> = events
        .iter()
        .map(|event| event.usage.model.as_str().to_owned())
        .collect();
    let rows = sqlx::query_as!(
        Found,
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
    Ok(rows.into_iter().filter_map(Found::known).collect())
}
