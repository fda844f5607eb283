use fastllm_contract::{Budget, LimitsState, ModelName, ModelPrices, Timestamp};
use fastllm_engine::Window;
use sqlx::PgConnection;

use super::prices::prices;
use super::spending::WindowId;
use super::{Db, DbError, budgets, reconcile, spending};

/// Reads the limits state in one transaction. Sorted, so that every control plane
/// replica returns the same bytes for the same state.
pub(crate) async fn read(db: &Db) -> Result<LimitsState, DbError> {
    let mut transaction = db.begin_reading().await?;
    let fleet = reconcile::fleet(&mut transaction, None).await?;
    let prices = model_prices(&mut transaction).await?;
    let windows: Vec<WindowId> = budgets::find(&mut transaction, None)
        .await?
        .iter()
        .filter_map(|budget| present(budget, fleet.now))
        .collect();
    let budgets = spending::stored(&mut transaction, &windows).await?;
    Ok(LimitsState {
        replicas: u32::try_from(fleet.live).unwrap_or(u32::MAX),
        prices,
        budgets,
    })
}

/// The window of a budget that contains `at`; `None` if this release does not know
/// the budget's time zone.
pub(crate) fn present(budget: &Budget, at: Timestamp) -> Option<WindowId> {
    let span = Window::of(budget).ok()?.at(at);
    WindowId::new(budget.id, span.start)
}

async fn model_prices(connection: &mut PgConnection) -> Result<Vec<ModelPrices>, DbError> {
    let rows = query!(
        r#"SELECT name, input_price_per_mtok, output_price_per_mtok, cached_input_price_per_mtok,
                  cache_write_price_per_mtok, reasoning_price_per_mtok,
                  audio_input_price_per_mtok, audio_output_price_per_mtok, image_price,
                  input_price_per_mchar, audio_price_per_minute
             FROM models
            WHERE num_nonnulls(input_price_per_mtok, output_price_per_mtok,
                      cached_input_price_per_mtok, cache_write_price_per_mtok,
                      reasoning_price_per_mtok, audio_input_price_per_mtok,
                      audio_output_price_per_mtok, image_price, input_price_per_mchar,
                      audio_price_per_minute) > 0
            ORDER BY name COLLATE "C""#
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            Some(ModelPrices {
                model: ModelName::new(&row.name).ok()?,
                prices: prices!(row),
            })
        })
        .collect())
}
