use std::time::Duration;

use axum::Extension;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fastllm_contract::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::framework::{ApiError, COOKIE, ClientAddress, ErrorCode, Json, session_token};
use crate::app::AppState;
use crate::clock;
use crate::crypto::{SessionToken, digest};
use crate::db::{DbError, sessions};
use crate::login_throttle::{AttemptError, whole_seconds};
use crate::metrics::LoginLabel;

/// The lifetime of a session; use does not extend it.
pub(crate) const SESSION_HOURS: u32 = 12;

/// The largest body in bytes; small because the sender is not authenticated.
const MAX_BODY: usize = 16 * 1024;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(login))
        .routes(routes!(logout))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

/// A name and its password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    name: String,
    #[schema(value_type = String, format = Password)]
    password: Secret,
}

/// The principal that logged in.
#[derive(Serialize, ToSchema)]
pub(crate) struct LoggedIn {
    name: String,
}

/// Log in
///
/// Starts a session; the response sets the cookie `fastllm_session`. After several
/// failed logins for a name at an address, from an address, or for a name from
/// addresses that it has never logged in from, further ones are rejected for an
/// increasing time, at most one minute.
#[utoipa::path(post, path = "/login", tag = "session", request_body = Credentials, responses(
    (status = 200, body = LoggedIn, description = "The session has begun."),
    (status = 401, description = "`unauthenticated`: The name or the password is wrong."),
    (status = 429, description = "`throttled`: Too many failed logins; see `Retry-After`."),
    (status = 503, description = "`busy`: Too many passwords are being checked at the moment.\n\n`database_unavailable`: The database is unavailable."),
))]
async fn login(
    State(app): State<AppState>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
    Json(Credentials { name, password }): Json<Credentials>,
) -> Result<Response, ApiError> {
    let refuse = |error| throttled(&app, error);
    let checked = app.throttle.check(&name, address, clock::monotonic());
    checked.map_err(refuse)?;
    let slot = app.passwords.slot().await.ok_or_else(ApiError::busy)?;
    let attempt = app
        .throttle
        .begin(&app.db.admin, &name, address, clock::monotonic());
    let attempt = attempt.await.map_err(refuse)?;
    let known = sessions::login(&mut *app.db.admin.begin().await?, &name).await?;
    let hash = known.as_ref().and_then(|row| row.password_hash.clone());
    let (right, slot) = app.passwords.verify(slot, password, hash).await?;
    let Some(known) = known.filter(|_| right) else {
        return Err(refused(&app));
    };
    drop(slot);
    let token = SessionToken::generate()?;
    let expires_at = clock::now() + Duration::from_secs(u64::from(SESSION_HOURS) * 3600);
    let mut transaction = app.db.admin.begin().await?;
    if !sessions::insert(&mut transaction, &token.hash, &known, expires_at).await? {
        return Err(refused(&app));
    }
    attempt.succeeded(&mut transaction).await?;
    transaction.commit().await.map_err(DbError::from)?;
    app.metrics.login(LoginLabel::Succeeded);
    tracing::info!(principal = known.principal_id, "logged in");
    let cookie = cookie(token.plaintext.expose(), SESSION_HOURS * 3600, app.tls)?;
    Ok((
        [(header::SET_COOKIE, cookie)],
        Json(LoggedIn { name: known.name }),
    )
        .into_response())
}

/// The response to an attempt that may not be made now.
fn throttled(app: &AppState, error: AttemptError) -> ApiError {
    let wait = match error {
        AttemptError::Throttled(wait) => wait,
        AttemptError::Database(error) => return error.into(),
    };
    app.metrics.login(LoginLabel::Throttled);
    tracing::info!("a login was rejected after too many failed ones");
    let seconds = whole_seconds(wait);
    ApiError::new(
        ErrorCode::Throttled,
        format!("too many failed logins; try again in {seconds} s"),
    )
    .with_retry_after(seconds)
}

fn refused(app: &AppState) -> ApiError {
    app.metrics.login(LoginLabel::Failed);
    tracing::info!("a login failed");
    ApiError::unauthenticated("the name or the password is wrong")
}

/// Log out
///
/// Ends the session, if there is one.
#[utoipa::path(post, path = "/logout", tag = "session", responses(
    (status = 204, description = "The session has ended, if there was one."),
))]
async fn logout(State(app): State<AppState>, headers: HeaderMap) -> Result<Response, ApiError> {
    if let Some(token) = session_token(&headers) {
        let mut transaction = app.db.admin.begin().await?;
        sessions::delete(&mut transaction, &digest(token.as_bytes())).await?;
        transaction.commit().await.map_err(DbError::from)?;
    }
    let cookie = cookie("", 0, app.tls)?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

fn cookie(token: &str, max_age: u32, tls: bool) -> Result<HeaderValue, ApiError> {
    let secure = if tls { "; Secure" } else { "" };
    let text =
        format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age}{secure}");
    HeaderValue::from_str(&text).map_err(|_| ApiError::internal())
}
