use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::report;
use crate::api::framework::fields::view;
use crate::api::framework::{ApiError, Permission, Query, checks, page, require_permission};
use crate::app::AppState;
use crate::db::audit;
use crate::db::audit::{AuditFilter, AuditRow};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(require_permission(Permission::UsageRead, routes!(list)))
}

view! {
    /// A change of the configuration.
    pub(crate) struct AuditView from AuditRow {
        id: i64,
        /// The name of the actor at that time.
        actor_name: String,
        /// `null` for a command on the control plane's host.
        actor_id: Option<i64>,
        /// The request's method.
        action: String,
        /// The request's path.
        target: String,
        /// The operation, and the changed fields before and after. Secrets appear as `set`
        /// or `cleared`.
        #[schema(value_type = Object)]
        detail: serde_json::Value,
        /// The address of the client.
        source: Option<String>,
        #[serde(with = "time::serde::rfc3339")]
        at: OffsetDateTime,
    }
}

/// The requested audit records.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditParams {
    /// The maximum number of results, from 1 to 1000; 100 by default.
    limit: Option<i64>,
    /// Return only objects with a smaller ID.
    before: Option<i64>,
    /// Return only changes by this principal.
    actor_id: Option<i64>,
    /// Return only changes whose target contains this text.
    target: Option<String>,
    /// Start of the period, inclusive (RFC 3339).
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
}

/// List audit records
///
/// Lists changes of the configuration, newest first.
#[utoipa::path(get, path = "/admin/audit", tag = "audit", params(AuditParams),
    responses((status = 200, body = Vec<AuditView>, description = "The audit records.")))]
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
    let rows = report(&app, async |connection| {
        audit::list(connection, &filter, page).await
    })
    .await?;
    let rows = rows.into_iter().map(|row| (row.id, AuditView::from(row)));
    Ok(page::respond(&uri, page, "before", rows))
}
