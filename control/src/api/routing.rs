//! How requests find a model: virtual models, their rules and targets, and the
//! fallback model.

mod conditions;
mod fallback_model;
mod rules;
mod targets;
mod virtual_models;

use utoipa_axum::router::OpenApiRouter;

use crate::app::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(virtual_models::routes())
        .merge(rules::routes())
        .merge(fallback_model::routes())
}
