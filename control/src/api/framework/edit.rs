use axum::http::StatusCode;
use sqlx::PgConnection;

use super::audit_detail::AuditDetail;
use super::error::{ApiError, ErrorCode};
use super::permission::Permission;
use crate::app::AppState;
use crate::db::sessions::SessionRow;
use crate::db::{Change, principals};

/// A change of the configuration in progress, on behalf of the caller of a request.
/// Dropping it rolls the change back.
pub(crate) struct Edit {
    app: AppState,
    change: Change,
    session: SessionRow,
}

impl Edit {
    pub(super) fn new(app: AppState, change: Change, session: SessionRow) -> Self {
        Self {
            app,
            change,
            session,
        }
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.change.connection()
    }

    /// The ID of the principal on whose behalf the change is made.
    pub(crate) fn caller(&self) -> i64 {
        self.session.principal_id
    }

    /// Rejects a change that gives permissions which the caller does not have, so that
    /// nobody can obtain more than they were given. `given` are permissions and their
    /// resources.
    pub(crate) async fn require_held(
        &mut self,
        given: &[(String, String)],
    ) -> Result<(), ApiError> {
        let caller = self.caller();
        let held = principals::permissions(self.change.connection(), caller).await?;
        let missing = given.iter().find(|(verb, on)| !is_held(&held, verb, on));
        match missing {
            Some((verb, resource)) => Err(ApiError::new(
                ErrorCode::PermissionDenied,
                format!("this requires the permission {verb} on {resource}, which it would give"),
            )),
            None => Ok(()),
        }
    }

    /// Rejects a change that gives access as another principal, unless the caller has
    /// all permissions of that principal.
    pub(crate) async fn require_all_of(&mut self, principal: i64) -> Result<(), ApiError> {
        if principal == self.caller() {
            return Ok(());
        }
        let given = principals::permissions(self.change.connection(), principal).await?;
        self.require_held(&given).await
    }

    /// Rejects the change unless the caller has this permission, in addition to that of
    /// the route.
    pub(crate) fn require(&self, permission: Permission) -> Result<(), ApiError> {
        permission.check(&self.session)
    }

    /// Commits the change with its audit record and publishes it; the response has no
    /// body.
    pub(crate) async fn commit(self, detail: AuditDetail) -> Result<StatusCode, ApiError> {
        let Self { app, change, .. } = self;
        // Boxed because the future is large.
        Box::pin(app.commit(change, detail.entry())).await?;
        Ok(StatusCode::NO_CONTENT)
    }
}

/// Whether one of the permissions includes the wanted one: the same verb on the same
/// resource, on `*`, or on a prefix that ends with `*`.
fn is_held(held: &[(String, String)], wanted: &str, on: &str) -> bool {
    held.iter().any(|(verb, resource)| {
        let included = resource
            .strip_suffix('*')
            .is_some_and(|prefix| on.starts_with(prefix));
        verb == wanted && (resource == on || included)
    })
}

#[cfg(test)]
mod tests {
    use super::is_held;

    #[test]
    fn a_permission_includes_itself_and_what_its_prefix_covers() {
        let pair = |verb: &str, on: &str| (verb.to_owned(), on.to_owned());
        for (verb, on, wanted, wanted_on, expected) in [
            ("config:write", "*", "config:write", "*", true),
            ("config:write", "*", "key:create", "*", false),
            ("config:write", "*", "model:invoke", "model/a", false),
            ("model:invoke", "model/a", "model:invoke", "model/a", true),
            ("model:invoke", "model/a", "model:invoke", "model/ab", false),
            ("model:invoke", "model/a", "model:invoke", "model/a*", false),
            ("model:invoke", "model/a*", "model:invoke", "model/a", true),
            (
                "model:invoke",
                "model/a*",
                "model:invoke",
                "model/ab*",
                true,
            ),
            (
                "model:invoke",
                "model/ab*",
                "model:invoke",
                "model/a*",
                false,
            ),
            ("model:invoke", "model/*", "model:invoke", "model/a*", true),
            ("model:invoke", "model/a*", "model:invoke", "model/*", false),
            ("model:invoke", "model/*", "mcp:invoke", "mcp/a", false),
        ] {
            let held = [pair(verb, on)];
            assert_eq!(
                is_held(&held, wanted, wanted_on),
                expected,
                "{on} {wanted_on}"
            );
        }
        assert!(!is_held(&[], "model:invoke", "model/a"));
    }
}
