//! What happened and how the deployment is doing: usage, the audit log,
//! gateways, and the control plane itself.

mod audit;
mod gateways;
mod system;
mod usage;

use utoipa_axum::router::OpenApiRouter;

use crate::app::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(usage::routes())
        .merge(audit::routes())
        .merge(gateways::routes())
        .merge(system::routes())
}
