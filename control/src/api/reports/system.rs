use axum::extract::State;
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

/// Whether changes reach the gateways.
#[derive(Serialize, ToSchema)]
pub(crate) struct HealthView {
    /// Snapshots that could not be built since the start.
    snapshot_rebuild_failures: u64,
    /// What is wrong with the database; `null`: nothing.
    database: Option<String>,
}

/// How this control plane runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct ConfigView {
    /// Name of the caller.
    you: String,
    role: &'static str,
    version: &'static str,
    /// The admin listener is encrypted.
    tls: bool,
    uptime_seconds: u64,
    session_ttl_hours: u32,
    snapshot_rebuild_failures: u64,
    snapshot_version: Option<u64>,
    /// Models of the snapshot.
    models: usize,
    operator_managed: bool,
}

/// The outcome of a rebuild.
#[derive(Serialize, ToSchema)]
pub(crate) struct RebuildView {
    snapshot_version: Option<u64>,
    rebuild_failures: u64,
}

/// Says whether snapshots can be built.
#[utoipa::path(get, path = "/admin/health", tag = "settings",
    responses((status = 200, body = HealthView, description = "State")))]
async fn health(State(app): State<AppState>) -> Json<HealthView> {
    let failures = app.metrics.build_failures.get();
    Json(HealthView {
        snapshot_rebuild_failures: failures,
        database: app.status.trouble(),
    })
}

/// Shows how this control plane runs.
#[utoipa::path(get, path = "/admin/config", tag = "settings",
    responses((status = 200, body = ConfigView, description = "Settings")))]
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

/// Looks for changes now. Gateways are told only if there is one.
#[utoipa::path(post, path = "/admin/snapshot/rebuild", tag = "settings",
    responses((status = 200, body = RebuildView, description = "State afterwards")))]
async fn rebuild(
    State(app): State<AppState>,
    _caller: Caller,
) -> Result<Json<RebuildView>, ApiError> {
    if let Err(error) = app.publisher.refresh().await {
        tracing::error!(%error, "the snapshot cannot be built");
    }
    Ok(Json(RebuildView {
        snapshot_version: app.publisher.current().map(|current| current.etag.version),
        rebuild_failures: app.metrics.build_failures.get(),
    }))
}
