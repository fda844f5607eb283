//! How resources are read, created, changed and deleted, with an audit record of each
//! change.

use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use sqlx::PgConnection;

use super::audit_detail::AuditDetail;
use super::edit::Edit;
use super::error::ApiError;
use super::extract::Json;
use super::page;
use super::permission::Caller;
use crate::app::AppState;
use crate::db::Page;

/// The representation of a resource. The audit log records its fields before and
/// after a change.
pub(crate) trait Resource: Serialize + Send + Sync + Sized {
    /// The prefix of its operations in the audit log.
    const KIND: &'static str;
    /// The resource in its own table.
    type Row: Clone + Send + Sync;

    /// Lists are ordered by it, and audit records contain it.
    fn id(&self) -> i64;

    /// The row; 404 if it does not exist.
    fn row(
        connection: &mut PgConnection,
        id: i64,
    ) -> impl Future<Output = Result<Self::Row, ApiError>> + Send;

    /// The representation of a row, with what is read from other tables.
    fn view(
        connection: &mut PgConnection,
        row: Self::Row,
    ) -> impl Future<Output = Result<Self, ApiError>> + Send;

    /// The current representation; 404 if it does not exist.
    fn find(
        connection: &mut PgConnection,
        id: i64,
    ) -> impl Future<Output = Result<Self, ApiError>> + Send {
        async move {
            let row = Self::row(&mut *connection, id).await?;
            Self::view(connection, row).await
        }
    }
}

/// A resource that POST creates.
pub(crate) trait Create: Resource {
    type New: Send;

    /// Checks and stores the new resource; returns its ID.
    fn insert(
        connection: &mut PgConnection,
        new: Self::New,
    ) -> impl Future<Output = Result<i64, ApiError>> + Send;
}

/// A resource that PATCH changes.
pub(crate) trait Update: Resource {
    type Patch: Send;

    /// Checks the changes, and stores the row with them.
    fn update(
        connection: &mut PgConnection,
        row: Self::Row,
        patch: Self::Patch,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;
}

/// A resource that DELETE deletes.
pub(crate) trait Delete: Resource {
    /// Checks whether the resource can be deleted, and deletes it.
    fn delete(
        connection: &mut PgConnection,
        id: i64,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;
}

/// Responds with one page.
pub(crate) fn list<R: Resource>(uri: &Uri, page: Page, rows: Vec<impl Into<R>>) -> Response {
    let views = rows.into_iter().map(Into::into);
    page::respond(uri, page, "after", views.map(|view: R| (view.id(), view)))
}

/// Responds with one resource.
pub(crate) async fn show<R: Resource>(app: &AppState, id: i64) -> Result<Json<R>, ApiError> {
    Ok(Json(R::find(&mut *app.db.admin.begin().await?, id).await?))
}

/// Creates a resource.
pub(crate) async fn create<R: Create>(caller: Caller, new: R::New) -> Result<R, ApiError> {
    let mut change = caller.begin_change().await?;
    let id = R::insert(change.connection(), new).await?;
    created(change, id).await
}

/// Changes a resource.
pub(crate) async fn update<R: Update>(
    caller: Caller,
    id: i64,
    patch: R::Patch,
) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let row = R::row(change.connection(), id).await?;
    update_row::<R>(change, row, patch).await
}

/// Changes the resource that `row` holds.
pub(crate) async fn update_row<R: Update>(
    mut change: Edit,
    row: R::Row,
    patch: R::Patch,
) -> Result<StatusCode, ApiError> {
    let before = R::view(change.connection(), row.clone()).await?;
    R::update(change.connection(), row, patch).await?;
    changed(change, "update", &before).await
}

/// Deletes a resource.
pub(crate) async fn delete<R: Delete>(caller: Caller, id: i64) -> Result<StatusCode, ApiError> {
    let mut change = caller.begin_change().await?;
    let gone = R::find(change.connection(), id).await?;
    delete_found(change, &gone).await
}

/// Deletes the resource `gone`.
pub(crate) async fn delete_found<R: Delete>(
    mut change: Edit,
    gone: &R,
) -> Result<StatusCode, ApiError> {
    R::delete(change.connection(), gone.id()).await?;
    change.commit(detail("delete", gone).deleted(gone)).await
}

/// Commits the creation of `id` and returns its representation.
pub(crate) async fn created<R: Resource>(mut change: Edit, id: i64) -> Result<R, ApiError> {
    let made = R::find(change.connection(), id).await?;
    change
        .commit(detail("create", &made).created(&made))
        .await?;
    Ok(made)
}

/// Commits the change `name` to the resource `before`.
pub(crate) async fn changed<R: Resource>(
    mut change: Edit,
    name: &str,
    before: &R,
) -> Result<StatusCode, ApiError> {
    let after = R::find(change.connection(), before.id()).await?;
    change
        .commit(detail(name, before).changed(before, &after))
        .await
}

fn detail<R: Resource>(name: &str, of: &R) -> AuditDetail {
    AuditDetail::new(format!("{}.{name}", R::KIND)).id(of.id())
}
