//! Reading resources, and committing changes to them with their audit record.

use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use sqlx::PgConnection;

use super::audit_detail::AuditDetail;
use super::error::ApiError;
use super::extract::Json;
use super::page;
use crate::app::AppState;
use crate::db::{Change, Page};

/// The representation of a resource. The audit log records its fields before and
/// after a change.
pub(crate) trait Resource: Serialize + Send + Sync + Sized {
    /// The prefix of its operations in the audit log.
    const KIND: &'static str;

    /// Lists are ordered by it, and audit records contain it.
    fn id(&self) -> i64;

    /// The current representation; 404 if it does not exist.
    fn find(
        connection: &mut PgConnection,
        id: i64,
    ) -> impl Future<Output = Result<Self, ApiError>> + Send;
}

/// Responds with one page.
pub(crate) fn list<R: Resource>(uri: &Uri, page: Page, rows: Vec<impl Into<R>>) -> Response {
    let views = rows.into_iter().map(Into::into);
    page::respond(uri, page, "after", views.map(|view: R| (view.id(), view)))
}

/// Responds with one resource.
pub(crate) async fn show<R: Resource>(app: &AppState, id: i64) -> Result<Json<R>, ApiError> {
    Ok(Json(R::find(&mut *app.db.acquire().await?, id).await?))
}

/// Commits the creation of `id` and returns its representation.
pub(crate) async fn created<R: Resource>(
    app: &AppState,
    mut change: Change,
    id: i64,
) -> Result<R, ApiError> {
    let made = R::find(change.connection(), id).await?;
    commit(app, change, detail("create", &made).created(&made)).await?;
    Ok(made)
}

/// Commits the change `name` to the resource `before`.
pub(crate) async fn changed<R: Resource>(
    app: &AppState,
    mut change: Change,
    name: &str,
    before: &R,
) -> Result<StatusCode, ApiError> {
    let after = R::find(change.connection(), before.id()).await?;
    commit(app, change, detail(name, before).changed(before, &after)).await
}

/// Commits the deletion of `gone`.
pub(crate) async fn deleted<R: Resource>(
    app: &AppState,
    change: Change,
    gone: &R,
) -> Result<StatusCode, ApiError> {
    commit(app, change, detail("delete", gone).deleted(gone)).await
}

/// Commits a change with its audit record; the response has no body.
pub(crate) async fn commit(
    app: &AppState,
    change: Change,
    detail: AuditDetail,
) -> Result<StatusCode, ApiError> {
    // Boxed because the future is large.
    Box::pin(app.commit(change, detail.entry())).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn detail<R: Resource>(name: &str, of: &R) -> AuditDetail {
    AuditDetail::new(format!("{}.{name}", R::KIND)).id(of.id())
}
