use axum::extract::State;
use fastllm_process::error::Chain;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::access::SESSION_HOURS;
use crate::api::framework::{ApiError, Caller, Json, Permission, require_permission};
use crate::app::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(require_permission(Permission::UsageRead, routes!(health)))
        .routes(require_permission(Permission::UsageRead, routes!(config)))
        .routes(require_permission(
            Permission::ConfigWrite,
            routes!(rebuild),
        ))
}

/// The health of the control plane.
#[derive(Serialize, ToSchema)]
pub(crate) struct HealthView {
    /// Number of failed snapshot builds since the start.
    snapshot_rebuild_failures: u64,
    /// The problem with the database; `null` if there is none.
    database: Option<String>,
}

/// The settings of this control plane.
#[derive(Serialize, ToSchema)]
pub(crate) struct ConfigView {
    /// The name of the caller.
    you: String,
    role: &'static str,
    version: &'static str,
    /// The admin listener is encrypted.
    tls: bool,
    uptime_seconds: u64,
    session_ttl_hours: u32,
    snapshot_rebuild_failures: u64,
    snapshot_version: Option<u64>,
    /// The number of models in the snapshot.
    models: usize,
    operator_managed: bool,
}

/// The outcome of a rebuild.
#[derive(Serialize, ToSchema)]
pub(crate) struct RebuildView {
    snapshot_version: Option<u64>,
    rebuild_failures: u64,
}

/// Retrieve the health of the control plane
///
/// Reports whether the database is available and snapshots can be built.
#[utoipa::path(get, path = "/admin/health", tag = "settings",
    responses((status = 200, body = HealthView, description = "The health of the control plane.")))]
async fn health(State(app): State<AppState>) -> Json<HealthView> {
    let failures = app.metrics.build_failures.get();
    Json(HealthView {
        snapshot_rebuild_failures: failures,
        database: app.status.problem(),
    })
}

/// Retrieve the settings of the control plane
#[utoipa::path(get, path = "/admin/config", tag = "settings",
    responses((status = 200, body = ConfigView, description = "The settings.")))]
async fn config(State(app): State<AppState>, caller: Caller) -> Json<ConfigView> {
    let current = app.publisher.current();
    Json(ConfigView {
        you: caller.actor.name,
        role: "control",
        version: env!("CARGO_PKG_VERSION"),
        tls: app.tls,
        uptime_seconds: app.started.elapsed().as_secs(),
        session_ttl_hours: SESSION_HOURS,
        snapshot_rebuild_failures: app.metrics.build_failures.get(),
        snapshot_version: current.as_ref().map(|current| current.etag.version),
        models: current.as_ref().map_or(0, |current| current.models()),
        operator_managed: app.operator_resource.is_some(),
    })
}

/// Rebuild the snapshot
///
/// Reads the configuration from the database now. Gateways are notified only if
/// it has changed.
#[utoipa::path(post, path = "/admin/snapshot/rebuild", tag = "settings",
    responses((status = 200, body = RebuildView, description = "The state after the rebuild.")))]
async fn rebuild(
    State(app): State<AppState>,
    _caller: Caller,
) -> Result<Json<RebuildView>, ApiError> {
    if let Err(error) = app.publisher.refresh().await {
        tracing::error!(error = %Chain(&error), "building the snapshot failed");
    }
    Ok(Json(RebuildView {
        snapshot_version: app.publisher.current().map(|current| current.etag.version),
        rebuild_failures: app.metrics.build_failures.get(),
    }))
}
