//! The admin API: the framework that every resource is built from, and the
//! resources by family, each with its types, handlers, permission and
//! documentation.

mod access;
mod allowances;
mod framework;
mod models;
mod reports;
mod routing;

use utoipa::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;

use crate::app::AppState;
use framework::openapi;

pub(crate) use framework::{ApiError, ClientAddress, ErrorCode, Json, Query, same_origin};

/// The largest body of an admin request, in bytes.
const MAX_BODY: usize = 1024 * 1024;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "FastLLM Proxy admin API",
        description = "Configuration, keys, usage and audit of a FastLLM Proxy deployment.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(framework::ErrorBody))
)]
struct Document;

/// The routes of the admin API and their OpenAPI document.
pub(crate) fn routes() -> OpenApiRouter<AppState> {
    let mut document = Document::openapi();
    if let Some(components) = &mut document.components {
        let cookie = ApiKey::Cookie(ApiKeyValue::new(framework::COOKIE));
        components.add_security_scheme(openapi::SCHEME, SecurityScheme::ApiKey(cookie));
    }
    let mut router = OpenApiRouter::with_openapi(document)
        .merge(models::routes())
        .merge(routing::routes())
        .merge(access::routes())
        .merge(allowances::routes())
        .merge(reports::routes())
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY));
    let document = router.get_openapi_mut();
    let components = document.components.get_or_insert_default();
    for item in document.paths.paths.values_mut() {
        for (method, operation) in openapi::operations(item) {
            openapi::name_operation(operation);
            openapi::describe_errors(&method, operation, components);
        }
    }
    router
}

/// The OpenAPI document, as JSON with a final newline.
///
/// # Errors
/// Only if the document cannot be serialized.
pub fn openapi_document() -> Result<String, crate::Error> {
    let document = routes().into_openapi();
    document
        .to_pretty_json()
        .map(|json| json + "\n")
        .map_err(crate::Error::OpenApi)
}
