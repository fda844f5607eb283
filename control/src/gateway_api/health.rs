use axum::extract::State;
use axum::http::StatusCode;
use fastllm_contract::HealthReport;

use super::check_name;
use crate::api::{ApiError, Json};
use crate::app::AppState;
use crate::db::{DbError, gateways};

/// Stores the latest report of a gateway, for all control plane replicas.
pub(super) async fn post(
    State(app): State<AppState>,
    Json(report): Json<HealthReport>,
) -> Result<StatusCode, ApiError> {
    check_name("replica", &report.replica)?;
    let stored = serde_json::to_value(&report).map_err(|_| ApiError::internal())?;
    let mut transaction = app.db.gateways.begin().await?;
    gateways::put(&mut transaction, &report.replica, &stored).await?;
    transaction.commit().await.map_err(DbError::from)?;
    Ok(StatusCode::NO_CONTENT)
}
