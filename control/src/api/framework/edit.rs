use axum::http::StatusCode;
use sqlx::PgConnection;

use super::audit_detail::AuditDetail;
use super::error::ApiError;
use crate::app::AppState;
use crate::db::Change;

/// A change of the configuration in progress, on behalf of the caller of a request.
/// Dropping it rolls the change back.
pub(crate) struct Edit {
    app: AppState,
    change: Change,
}

impl Edit {
    pub(super) fn new(app: AppState, change: Change) -> Self {
        Self { app, change }
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.change.connection()
    }

    /// Commits the change with its audit record and publishes it; the response has no
    /// body.
    pub(crate) async fn commit(self, detail: AuditDetail) -> Result<StatusCode, ApiError> {
        let Self { app, change } = self;
        // Boxed because the future is large.
        Box::pin(app.commit(change, detail.entry())).await?;
        Ok(StatusCode::NO_CONTENT)
    }
}
