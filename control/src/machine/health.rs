use axum::extract::State;
use axum::http::StatusCode;
use fastllm_contract::HealthReport;

use super::{AppState, check_name};
use crate::api::{ApiError, Body};
use crate::db::gateways;

/// Keeps a gateway's newest report, for every control replica to show.
pub(super) async fn post(
    State(app): AppState,
    Body(report): Body<HealthReport>,
) -> Result<StatusCode, ApiError> {
    check_name("replica", &report.replica)?;
    let stored = serde_json::to_value(&report).map_err(|_| ApiError::internal())?;
    gateways::put(&mut *app.db.acquire().await?, &report.replica, &stored).await?;
    Ok(StatusCode::NO_CONTENT)
}
