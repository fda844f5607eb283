use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::{ApiError, Permission, Query, checks, page, require_permission};
use crate::app::AppState;
use crate::db::audit;
use crate::db::audit::{AuditFilter, AuditRow};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(require_permission(Permission::UsageRead, routes!(list)))
}

/// A change, and who made it.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditView {
    id: i64,
    /// The actor's name at that time.
    actor_name: String,
    /// `null`: a command on the control plane's own host.
    actor_id: Option<i64>,
    /// The request's method.
    action: String,
    /// The request's path.
    target: String,
    /// The operation, and the changed fields before and after; secrets only as
    /// `set` or `cleared`.
    #[schema(value_type = Object)]
    detail: serde_json::Value,
    /// The address that it came from.
    source: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
}

impl From<AuditRow> for AuditView {
    fn from(row: AuditRow) -> Self {
        let AuditRow {
            id,
            actor_id,
            actor_name,
            action,
            target,
            detail,
            source,
            at,
        } = row;
        Self {
            id,
            actor_name,
            actor_id,
            action,
            target,
            detail,
            source,
            at,
        }
    }
}

/// Which changes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditParams {
    /// At most so many, from 1 to 1000; 100 by default.
    limit: Option<i64>,
    /// Only ids below this one.
    before: Option<i64>,
    /// Only by this principal.
    actor_id: Option<i64>,
    /// Only where the target holds this text.
    target: Option<String>,
    /// Only from this time on (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
}

/// Lists changes of the configuration, newest first.
#[utoipa::path(get, path = "/admin/audit", tag = "audit", params(AuditParams),
    responses((status = 200, body = Vec<AuditView>, description = "Changes")))]
async fn list(
    State(app): State<AppState>,
    uri: Uri,
    Query(params): Query<AuditParams>,
) -> Result<Response, ApiError> {
    let AuditParams {
        limit,
        before,
        actor_id,
        target,
        since,
    } = params;
    let page = page::page(limit, 100, before)?;
    let since = since.map(|text| checks::time("since", &text)).transpose()?;
    let filter = AuditFilter {
        actor_id,
        target,
        since,
    };
    let rows = audit::list(&mut *app.db.acquire().await?, &filter, page).await?;
    let rows = rows.into_iter().map(|row| (row.id, AuditView::from(row)));
    Ok(page::answer(&uri, page, "before", rows))
}
