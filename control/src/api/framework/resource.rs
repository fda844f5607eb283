//! What the resources of the admin API have in common: how they are shown, and
//! how a change of one ends.

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

/// Something that the admin API keeps, as it is shown. The audit tells its fields
/// before and after a change.
pub(crate) trait Resource: Serialize + Send + Sync + Sized {
    /// What the operations of its audit rows begin with.
    const KIND: &'static str;

    /// Lists go by it, and audit rows tell it.
    fn id(&self) -> i64;

    /// As it is now; 404 where it is not there.
    fn find(
        connection: &mut PgConnection,
        id: i64,
    ) -> impl Future<Output = Result<Self, ApiError>> + Send;
}

/// Shows one page of them.
pub(crate) fn list<R: Resource>(uri: &Uri, page: Page, rows: Vec<impl Into<R>>) -> Response {
    let views = rows.into_iter().map(Into::into);
    page::answer(uri, page, "after", views.map(|view: R| (view.id(), view)))
}

/// Shows one.
pub(crate) async fn show<R: Resource>(app: &AppState, id: i64) -> Result<Json<R>, ApiError> {
    Ok(Json(R::find(&mut *app.db.acquire().await?, id).await?))
}

/// Commits that `id` is there now: what was made.
pub(crate) async fn created<R: Resource>(
    app: &AppState,
    mut change: Change,
    id: i64,
) -> Result<R, ApiError> {
    let made = R::find(change.connection(), id).await?;
    commit(app, change, detail("create", &made).created(&made)).await?;
    Ok(made)
}

/// Commits a change, by name, of what looked like `before`.
pub(crate) async fn changed<R: Resource>(
    app: &AppState,
    mut change: Change,
    name: &str,
    before: &R,
) -> Result<StatusCode, ApiError> {
    let after = R::find(change.connection(), before.id()).await?;
    commit(app, change, detail(name, before).changed(before, &after)).await
}

/// Commits that `gone` is not there any more.
pub(crate) async fn deleted<R: Resource>(
    app: &AppState,
    change: Change,
    gone: &R,
) -> Result<StatusCode, ApiError> {
    commit(app, change, detail("delete", gone).deleted(gone)).await
}

/// Commits a change with its audit row; there is nothing else to answer.
pub(crate) async fn commit(
    app: &AppState,
    change: Change,
    detail: AuditDetail,
) -> Result<StatusCode, ApiError> {
    // Boxed: it is large, and callers would hold it beside their own state.
    Box::pin(app.commit(change, detail.entry())).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn detail<R: Resource>(name: &str, of: &R) -> AuditDetail {
    AuditDetail::new(format!("{}.{name}", R::KIND)).id(of.id())
}
