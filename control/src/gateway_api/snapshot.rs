use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::{ApiError, ErrorCode, Query};
use crate::app::AppState;
use crate::snapshot::{Etag, Published};

/// Longest time that a gateway is kept waiting.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How long to look whether a gateway knows something newer.
const REFRESH_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
pub(super) struct SnapshotParams {
    wait: Option<String>,
}

/// The snapshot, or what changed since the one that `If-None-Match` names; 304
/// when nothing has within `wait`; 503 while none is built.
pub(super) async fn get(
    State(app): State<AppState>,
    Query(params): Query<SnapshotParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let wait = params
        .wait
        .as_deref()
        .map_or(Ok(Duration::ZERO), duration)?;
    let deadline = Instant::now() + wait.min(LONGEST_WAIT);
    let held = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .and_then(Etag::parse);
    let mut changes = app.publisher.subscribe();
    let _waiting = Waiting::new(&app);
    let mut patience = Patience::default();
    loop {
        let current = changes.borrow_and_update().clone();
        if let Some(current) = current.clone()
            && patience.has_news(&app, held.as_ref(), &current).await
        {
            // The look at the database may have published a newer one.
            let newest = app.publisher.current().unwrap_or(current);
            if held
                .as_ref()
                .is_none_or(|held| held.digest != newest.etag.digest)
            {
                return answer(&app, newest, held.as_ref()).await;
            }
        }
        tokio::select! {
            woken = timeout_at(deadline, changes.changed()) => match woken {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return nothing_new(&app, held.as_ref()),
            },
            () = app.draining.cancelled() => return nothing_new(&app, held.as_ref()),
        }
    }
}

/// Decides once whether a gateway that knows a higher version than this
/// replica is ahead of it, or holds what a restored database no longer knows.
#[derive(Default)]
struct Patience {
    /// The database said that its version really is the lower one.
    restored: bool,
    looked: bool,
}

impl Patience {
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
        if !self.looked {
            self.looked = true;
            let refreshed = timeout(REFRESH_PATIENCE, app.publisher.refresh()).await;
            self.restored = matches!(refreshed, Ok(Ok(_)));
        }
        // While the database is away nobody knows: the gateway keeps its own.
        self.restored
    }
}

async fn answer(
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
            tracing::error!(%error, "a snapshot cannot be sent");
            ApiError::internal()
        })?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::ETAG, etag), (header::CONTENT_TYPE, json)], bytes).into_response())
}

/// Nothing new; the tag of the newest version of the same content comes along.
/// Where the gateway holds other content, which it is to keep, no tag does: it
/// would take that for the name of what it holds.
fn nothing_new(app: &AppState, held: Option<&Etag>) -> Result<Response, ApiError> {
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

/// `30s`, `500ms` or a bare number of seconds.
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

/// Counts who waits, however the waiting ends.
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
