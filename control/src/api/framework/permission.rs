use std::fmt;
use std::net::IpAddr;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use sqlx::PgConnection;
use url::Url;
use utoipa::openapi::security::SecurityRequirement;
use utoipa_axum::router::UtoipaMethodRouter;

use super::edit::Edit;
use super::error::{ApiError, ErrorCode};
use super::openapi::{SCHEME, operations};
use crate::app::AppState;
use crate::crypto::digest;
use crate::db::sessions::SessionRow;
use crate::db::{Actor, Change, sessions};

/// The cookie that holds a session's token.
pub(crate) const COOKIE: &str = "fastllm_session";

/// The client's address, in the request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The permissions of the admin API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    UsageRead,
    KeyCreate,
    KeyRevoke,
    ConfigWrite,
    PasswordSet,
}

impl Permission {
    /// The name by which roles grant it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UsageRead => "usage:read",
            Self::KeyCreate => "key:create",
            Self::KeyRevoke => "key:revoke",
            Self::ConfigWrite => "config:write",
            Self::PasswordSet => "password:set",
        }
    }

    /// Rejects a session whose principal lacks the permission.
    pub(super) fn check(self, session: &SessionRow) -> Result<(), ApiError> {
        let permission = self.name();
        if session.verbs.iter().any(|granted| granted == permission) {
            return Ok(());
        }
        tracing::info!(
            principal = session.principal_id,
            permission,
            "permission denied"
        );
        Err(ApiError::permission_denied(permission))
    }
}

/// The authenticated sender of a request, who has the required permission.
///
/// Invariant: only [`require_permission`] creates a `Caller`, so a handler that takes
/// one cannot be reached without its permission.
#[derive(Clone)]
pub(crate) struct Caller {
    app: AppState,
    /// For the audit log.
    pub(crate) actor: Actor,
    /// The session and permission that authorize the request.
    pub(crate) claim: Claim,
}

impl Caller {
    /// Begins a change on behalf of the caller. The permission is checked again:
    /// changes are serialized, and an earlier one may have revoked it.
    pub(crate) async fn begin_change(self) -> Result<Edit, ApiError> {
        let Self { app, actor, claim } = self;
        let mut change = Change::begin(&app.db.admin, actor).await?;
        let session = claim.check(change.connection()).await?;
        Ok(Edit::new(app, change, session))
    }
}

/// A session, and the permission that the request requires.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    token_hash: [u8; 32],
    permission: Permission,
}

impl Claim {
    /// The session's principal; an error if the session has ended or the principal lacks
    /// the permission.
    pub(crate) async fn check(
        &self,
        connection: &mut PgConnection,
    ) -> Result<SessionRow, ApiError> {
        let session = sessions::find(connection, &self.token_hash)
            .await?
            .ok_or_else(unauthenticated)?;
        self.permission.check(&session)?;
        Ok(session)
    }
}

fn unauthenticated() -> ApiError {
    ApiError::unauthenticated("log in first")
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

/// Requires `permission` for these routes, also in the OpenAPI document.
pub(crate) fn require_permission(
    permission: Permission,
    (schemas, mut paths, router): UtoipaMethodRouter<AppState>,
) -> UtoipaMethodRouter<AppState> {
    for (_, operation) in paths.paths.values_mut().flat_map(operations) {
        operation.security = Some(vec![SecurityRequirement::new(SCHEME, [permission.name()])]);
    }
    let check = from_fn(move |request: Request, next: Next| check(permission, request, next));
    (schemas, paths, router.route_layer(check))
}

async fn check(permission: Permission, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    match identify(permission, &head).await {
        Ok(caller) => {
            head.extensions.insert(caller);
            next.run(Request::from_parts(head, body)).await
        }
        Err(error) => error.into_response(),
    }
}

async fn identify(permission: Permission, request: &Parts) -> Result<Caller, ApiError> {
    let app = request
        .extensions
        .get::<AppState>()
        .cloned()
        .ok_or_else(ApiError::internal)?;
    let source = request
        .extensions
        .get::<ClientAddress>()
        .map(ClientAddress::to_string);
    let token = session_token(&request.headers).ok_or_else(unauthenticated)?;
    let claim = Claim {
        token_hash: digest(token.as_bytes()),
        permission,
    };
    let session = claim.check(&mut *app.db.admin.begin().await?).await?;
    Ok(Caller {
        app,
        actor: Actor {
            id: Some(session.principal_id),
            name: session.name,
            action: request.method.to_string(),
            target: request.uri.path().to_owned(),
            source,
        },
        claim,
    })
}

/// Rejects changes that a browser sends from pages of another origin. `SameSite`
/// cookies exclude other sites, but not other ports and subdomains of this one.
pub(crate) async fn same_origin(request: Request, next: Next) -> Response {
    if !request.method().is_safe() && is_foreign(request.headers()) {
        return ApiError::new(
            ErrorCode::ForeignOrigin,
            "pages of other origins must not change anything here",
        )
        .into_response();
    }
    next.run(request).await
}

/// Whether a browser sent the request from a page of another origin. Clients other
/// than browsers send neither header; old browsers send `origin` only.
fn is_foreign(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site != "same-origin" && site != "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return false;
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    !origin
        .to_str()
        .is_ok_and(|origin| is_own(origin, host.unwrap_or_default()))
}

/// Whether an origin is the host that the request was sent to. Its scheme is
/// unknown behind a proxy that terminates TLS.
fn is_own(origin: &str, host: &str) -> bool {
    let Ok(origin) = Url::parse(origin) else {
        return false;
    };
    let own = Url::parse(&format!("{}://{host}", origin.scheme()));
    own.is_ok_and(|own| origin.origin().is_tuple() && own.origin() == origin.origin())
}

/// The session token in the request's cookies.
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

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue};

    use super::is_foreign;

    #[test]
    fn a_request_of_a_page_of_another_origin_is_foreign() {
        let table = "
            host: a                                                    | own
            host: a; origin: https://a                                 | own
            host: a; origin: http://a                                  | own
            host: A.Example:443; origin: https://a.example             | own
            host: a.example; origin: https://A.EXAMPLE:443             | own
            host: a:8080; origin: http://a:8080                        | own
            host: [::1]:8080; origin: http://[::1]:8080                | own
            host: a:8080; origin: http://a                             | foreign
            host: a; origin: http://a:8080                             | foreign
            host: a; origin: https://b                                 | foreign
            host: a; origin: https://a.b                               | foreign
            host: a.b; origin: https://b                               | foreign
            host: a; origin: null                                      | foreign
            host: a; origin: a                                         | foreign
            host: a; origin: file://a                                  | foreign
            origin: https://a                                          | foreign
            host: a; origin: https://b; sec-fetch-site: same-origin    | own
            host: a; origin: https://b; sec-fetch-site: none           | own
            host: a; origin: https://a; sec-fetch-site: cross-site     | foreign
            host: a; sec-fetch-site: same-site                         | foreign
        ";
        for line in table.lines().filter(|line| !line.trim().is_empty()) {
            let (fields, expected) = line.rsplit_once('|').unwrap();
            let fields = fields.split(';').map(|field| {
                let (name, value) = field.split_once(':').unwrap();
                let name: HeaderName = name.trim().parse().unwrap();
                (name, HeaderValue::from_str(value.trim()).unwrap())
            });
            let headers: HeaderMap = fields.collect();
            assert_eq!(is_foreign(&headers), expected.trim() == "foreign", "{line}");
        }
    }
}
