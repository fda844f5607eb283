//! A control plane that serves static files: `/{name}/snapshot` returns
//! `{name}.json`. It accepts usage and counts the events.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{self, DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;

use crate::{Error, local};

/// How long a long-poll request is held open: the snapshot never changes.
const HOLD: Duration = Duration::from_secs(30);

/// Maximum size of a batch or report, in bytes.
const MAX_BYTES: usize = 8 << 20;

/// The only version.
const ETAG: &str = "\"1-bench\"";

#[derive(Debug)]
struct Files {
    folder: PathBuf,
    events: AtomicU64,
}

/// Binds the port; 0 selects a free one.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    Ok(TcpListener::bind(local(address)?).await?)
}

/// Serves the snapshots of a directory forever.
pub async fn run(listener: TcpListener, folder: &Path) -> Result<(), Error> {
    let files = Arc::new(Files {
        folder: folder.to_owned(),
        events: AtomicU64::new(0),
    });
    let router = Router::new()
        .route("/{name}/snapshot", get(snapshot))
        .route("/{name}/usage", post(usage))
        .route("/{name}/health-report", post(health))
        .route("/events", get(events))
        .layer(DefaultBodyLimit::max(MAX_BYTES))
        .with_state(files);
    Ok(axum::serve(listener, router).await?)
}

async fn snapshot(
    State(files): State<Arc<Files>>,
    extract::Path(name): extract::Path<String>,
    headers: HeaderMap,
) -> Response {
    if headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|etag| etag == ETAG)
    {
        tokio::time::sleep(HOLD).await;
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, ETAG)]).into_response();
    }
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let path = files.folder.join(format!("{name}.json"));
    match tokio::fs::read(path).await {
        Ok(text) if plain => {
            let headers = [
                (header::ETAG, ETAG),
                (header::CONTENT_TYPE, "application/json"),
            ];
            (headers, text).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Counts events without parsing them, to leave the CPU to the load generator.
async fn usage(State(files): State<Arc<Files>>, body: Bytes) -> Response {
    let events = memchr::memmem::find_iter(&body, "\"principal_id\":").count() as u64;
    files.events.fetch_add(events, Ordering::Relaxed);
    let reply = format!("{{\"accepted\":{events},\"dropped\":0}}");
    ([(header::CONTENT_TYPE, "application/json")], reply).into_response()
}

async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Number of usage events received so far.
async fn events(State(files): State<Arc<Files>>) -> String {
    files.events.load(Ordering::Relaxed).to_string()
}
