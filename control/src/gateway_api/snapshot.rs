use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fastllm_process::error::Chain;
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::{ApiError, ErrorCode, Query};
use crate::app::AppState;
use crate::snapshot::{Etag, Published};

/// The maximum of `wait`.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The timeout for reading the database when a gateway has a newer version.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
pub(super) struct SnapshotParams {
    wait: Option<String>,
}

/// Returns the snapshot, or the difference to the one named by `If-None-Match`; 304
/// if nothing changes within `wait`; 503 until the first snapshot is built.
pub(super) async fn get(
    State(app): State<AppState>,
    Query(params): Query<SnapshotParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let wait = params
        .wait
        .as_deref()
        .map_or(Ok(Duration::ZERO), duration)?;
    let deadline = Instant::now() + wait.min(MAX_WAIT);
    let held = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .and_then(Etag::parse);
    let mut changes = app.publisher.subscribe();
    let _waiting = Waiting::new(&app);
    let mut check = RestoreCheck::default();
    loop {
        let current = changes.borrow_and_update().clone();
        if let Some(current) = current.clone()
            && check.has_news(&app, held.as_ref(), &current).await
        {
            // Reading the database may have published a newer one.
            let newest = app.publisher.current().unwrap_or(current);
            if held
                .as_ref()
                .is_none_or(|held| held.digest != newest.etag.digest)
            {
                return snapshot_response(&app, newest, held.as_ref()).await;
            }
        }
        tokio::select! {
            woken = timeout_at(deadline, changes.changed()) => match woken {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return not_modified(&app, held.as_ref()),
            },
            () = app.draining.cancelled() => return not_modified(&app, held.as_ref()),
        }
    }
}

/// Determines why a gateway has a higher version than this replica: either this
/// replica is behind, or the database was restored from a backup.
#[derive(Default)]
struct RestoreCheck {
    /// The database has the lower version.
    restored: bool,
    checked: bool,
}

impl RestoreCheck {
    async fn has_news(&mut self, app: &AppState, held: Option<&Etag>, current: &Published) -> bool {
        let Some(held) = held else {
            return true;
        };
        if held.digest == current.etag.digest {
            return false;
        }
        if held.version <= current.etag.version {
            return true;
        }
        if !self.checked {
            self.checked = true;
            let refreshed = timeout(REFRESH_TIMEOUT, app.publisher.refresh()).await;
            self.restored = matches!(refreshed, Ok(Ok(_)));
        }
        // While the database is unavailable, the gateway keeps its snapshot.
        self.restored
    }
}

async fn snapshot_response(
    app: &AppState,
    published: Arc<Published>,
    held: Option<&Etag>,
) -> Result<Response, ApiError> {
    let etag = etag_header(&published)?;
    let bytes = app
        .publisher
        .bytes(published, held)
        .await
        .map_err(|error| {
            tracing::error!(error = %Chain(&error), "cannot send a snapshot");
            ApiError::internal()
        })?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::ETAG, etag), (header::CONTENT_TYPE, json)], bytes).into_response())
}

/// The 304 response. It has the entity tag of the latest version only if the gateway
/// holds the same content; otherwise the gateway would assign that tag to the
/// different content it keeps.
fn not_modified(app: &AppState, held: Option<&Etag>) -> Result<Response, ApiError> {
    match app.publisher.current() {
        Some(current) if held.is_some_and(|held| held.digest == current.etag.digest) => {
            let etag = etag_header(&current)?;
            Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response())
        }
        Some(_) => Ok(StatusCode::NOT_MODIFIED.into_response()),
        None => Err(
            ApiError::new(ErrorCode::NoSnapshot, "no snapshot has been built yet")
                .with_retry_after(1),
        ),
    }
}

fn etag_header(published: &Published) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(&published.etag.to_string()).map_err(|_| ApiError::internal())
}

/// Parses `30s`, `500ms` or a number of seconds.
fn duration(text: &str) -> Result<Duration, ApiError> {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s').unwrap_or(text), 1000),
    };
    let number: u32 = digits
        .parse()
        .map_err(|_| ApiError::invalid("wait", "wait must be a duration like 30s or 500ms"))?;
    Ok(Duration::from_millis(u64::from(number) * unit))
}

/// Counts a waiting request until it is dropped.
struct Waiting(AppState);

impl Waiting {
    fn new(app: &AppState) -> Self {
        app.metrics.snapshot_waiters.inc();
        Self(app.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.metrics.snapshot_waiters.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("30s").unwrap(), Duration::from_secs(30));
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(duration("5").unwrap(), Duration::from_secs(5));
        assert!(duration("soon").is_err() && duration("-1s").is_err() && duration("").is_err());
    }
}
