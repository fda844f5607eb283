use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::{ApiError, Json, Permission, require_permission};
use crate::app::AppState;
use crate::db::gateways;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(require_permission(Permission::UsageRead, routes!(list)))
}

/// The last report of a gateway.
#[derive(Serialize, ToSchema)]
pub(crate) struct GatewayView {
    #[serde(flatten)]
    report: Report,
    /// The age of the report.
    age_seconds: f64,
}

/// The published part of a gateway's report.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct Report {
    replica: String,
    /// Unique for each start of the gateway.
    boot_id: String,
    version: String,
    snapshot_version: u64,
    uptime_seconds: u64,
    backends: Vec<BackendReport>,
    process: ProcessReport,
}

/// One gateway's view of one backend.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct BackendReport {
    id: u64,
    api_base: String,
    model: String,
    healthy: bool,
    inflight: u64,
    requests_total: u64,
    errors_total: u64,
}

/// Counters of one gateway since its start.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct ProcessReport {
    requests_ok: u64,
    requests_failed: u64,
    usage_dropped: u64,
    usage_queued: u64,
    rejected_unauthenticated: u64,
    rejected_model_not_found: u64,
}

/// List gateways
///
/// Lists the gateways that reported within the last 30 seconds, by name.
#[utoipa::path(get, path = "/admin/fleet", tag = "fleet",
    responses((status = 200, body = Vec<GatewayView>, description = "The gateways.")))]
async fn list(State(app): State<AppState>) -> Result<Json<Vec<GatewayView>>, ApiError> {
    let rows = gateways::list(&mut *app.db.admin.begin().await?).await?;
    let views = rows.into_iter().filter_map(|row| {
        let report = serde_json::from_value(row.report).ok()?;
        Some(GatewayView {
            report,
            age_seconds: row.age_seconds,
        })
    });
    Ok(Json(views.collect()))
}
