//! What happened and how the deployment is doing: usage, the audit log,
//! gateways, and the control plane itself.

mod audit;
mod gateways;
mod system;
mod usage;

use sqlx::PgConnection;
use utoipa_axum::router::OpenApiRouter;

use crate::api::framework::ApiError;
use crate::app::AppState;
use crate::db::DbError;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(usage::routes())
        .merge(audit::routes())
        .merge(gateways::routes())
        .merge(system::routes())
}

/// Runs the query of a report, with its connections and bounds.
async fn report<T>(
    app: &AppState,
    query: impl AsyncFnOnce(&mut PgConnection) -> Result<T, DbError>,
) -> Result<T, ApiError> {
    let rows = async {
        let mut transaction = app.db.reports.begin_report().await?;
        query(&mut transaction).await
    };
    rows.await.map_err(ApiError::of_report)
}
