//! Who may use the deployment: principals, roles, API keys, teams and sessions.

mod grants;
mod keys;
mod principals;
mod roles;
mod session;
mod teams;

use utoipa_axum::router::OpenApiRouter;

use crate::app::AppState;

pub(super) use session::SESSION_HOURS;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(principals::routes())
        .merge(roles::routes())
        .merge(keys::routes())
        .merge(teams::routes())
        .merge(session::routes())
}
