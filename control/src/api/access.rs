use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
use utoipa_axum::router::UtoipaMethodRouter;

use super::error::ApiError;
use super::login::COOKIE;
use crate::app::App;
use crate::crypto::digest;
use crate::db::{Actor, sessions};
use crate::serve::PeerAddress;

/// The name of the cookie's security scheme in the OpenAPI document.
pub(crate) const SCHEME: &str = "session";

/// The permissions of the admin API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    UsageRead,
    KeyCreate,
    KeyRevoke,
    ConfigWrite,
}

impl Verb {
    /// As roles grant it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UsageRead => "usage:read",
            Self::KeyCreate => "key:create",
            Self::KeyRevoke => "key:revoke",
            Self::ConfigWrite => "config:write",
        }
    }
}

/// Who sent the request, and that they may.
///
/// Invariant: only [`guarded`] makes one, so a handler that takes a `Caller`
/// cannot be reached without its permission.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// For the audit log.
    pub(crate) actor: Actor,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(ApiError::internal)
    }
}

/// Lets only callers with `verb` through to these routes, and says so in the
/// OpenAPI document.
pub(crate) fn guarded(
    verb: Verb,
    (schemas, mut paths, router): UtoipaMethodRouter<App>,
) -> UtoipaMethodRouter<App> {
    for operation in paths.paths.values_mut().flat_map(operations) {
        operation.security = Some(vec![SecurityRequirement::new(SCHEME, [verb.name()])]);
        describe_errors(operation);
    }
    let check = from_fn(move |request: Request, next: Next| check(verb, request, next));
    (schemas, paths, router.route_layer(check))
}

/// The operations of one path.
pub(super) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ]
    .into_iter()
    .flatten()
}

/// Every refusal and failure has the same body.
pub(crate) fn describe_errors(operation: &mut Operation) {
    let body = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("ErrorBody")))
        .build();
    let response = ResponseBuilder::new()
        .description("Refused or failed")
        .content("application/json", body)
        .build();
    operation
        .responses
        .responses
        .insert("default".to_owned(), response.into());
}

async fn check(verb: Verb, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    match identify(verb, &head).await {
        Ok(caller) => {
            head.extensions.insert(caller);
            next.run(Request::from_parts(head, body)).await
        }
        Err(error) => error.into_response(),
    }
}

async fn identify(verb: Verb, request: &Parts) -> Result<Caller, ApiError> {
    let app = request
        .extensions
        .get::<App>()
        .cloned()
        .ok_or_else(ApiError::internal)?;
    let source = request
        .extensions
        .get::<PeerAddress>()
        .map(PeerAddress::to_string);
    let refused = || ApiError::unauthenticated("log in first");
    let token = session_token(&request.headers).ok_or_else(refused)?;
    let mut connection = app.db.acquire().await?;
    let session = sessions::find(&mut connection, &digest(token.as_bytes()))
        .await?
        .ok_or_else(refused)?;
    if !session.verbs.iter().any(|held| held == verb.name()) {
        tracing::info!(
            principal = session.principal_id,
            verb = verb.name(),
            path = request.uri.path(),
            "permission refused"
        );
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "permission_denied",
            format!("this needs the permission {}", verb.name()),
        ));
    }
    Ok(Caller {
        actor: Actor {
            id: Some(session.principal_id),
            name: session.name,
            action: request.method.to_string(),
            target: request.uri.path().to_owned(),
            source,
        },
    })
}

/// The session's token of the request's cookies.
pub(crate) fn session_token(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, token)| token)
}
