//! The admin API: one file per resource, with its types, handlers, permission
//! and documentation.

mod access;
mod allowances;
mod audit;
mod backends;
mod budgets;
mod checks;
mod conditions;
mod detail;
mod error;
mod extract;
mod fallback;
mod fleet;
mod handling;
mod keys;
mod limits;
mod login;
mod models;
mod page;
mod patch;
mod prices;
mod principals;
mod resource;
mod roles;
mod rules;
mod settings;
mod targets;
mod teams;
mod usage;
mod virtual_models;

use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;

pub(crate) use access::{Caller, same_origin};
pub(crate) use error::{ApiError, ErrorBody};
pub(crate) use extract::{Body, Params};
pub(crate) use login::Throttle;

/// Largest body of an admin request, in bytes.
const MAX_BODY: usize = 1024 * 1024;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "FastLLM Proxy admin API",
        description = "Configuration, keys, usage and audit of a FastLLM Proxy deployment.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(ErrorBody))
)]
struct Document;

/// The admin API's routes and their description.
pub(crate) fn routes() -> OpenApiRouter<App> {
    let mut document = Document::openapi();
    if let Some(components) = &mut document.components {
        let cookie = ApiKey::Cookie(ApiKeyValue::new(login::COOKIE));
        components.add_security_scheme(access::SCHEME, SecurityScheme::ApiKey(cookie));
    }
    let mut router = OpenApiRouter::with_openapi(document)
        .merge(login::routes())
        .merge(models::routes())
        .merge(backends::routes())
        .merge(virtual_models::routes())
        .merge(rules::routes())
        .merge(fallback::routes())
        .merge(principals::routes())
        .merge(roles::routes())
        .merge(keys::routes())
        .merge(teams::routes())
        .merge(allowances::routes())
        .merge(limits::routes())
        .merge(budgets::routes())
        .merge(usage::routes())
        .merge(audit::routes())
        .merge(fleet::routes())
        .merge(settings::routes())
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY));
    for item in router.get_openapi_mut().paths.paths.values_mut() {
        access::operations(item).for_each(name_operation);
    }
    router
}

/// Handlers are named within their file; operations of the document need names
/// that are unique in all of it.
fn name_operation(operation: &mut Operation) {
    let tag = operation.tags.as_ref().and_then(|tags| tags.first());
    if let (Some(tag), Some(id)) = (tag, &operation.operation_id) {
        operation.operation_id = Some(format!("{tag}_{id}"));
    }
}

/// The OpenAPI document, as JSON with a final newline.
///
/// # Errors
/// Never in practice: the document is built from constants.
pub fn openapi_document() -> Result<String, crate::Error> {
    let document = routes().into_openapi();
    document
        .to_pretty_json()
        .map(|json| json + "\n")
        .map_err(|_| crate::Error::Internal("the OpenAPI document cannot be written"))
}
