//! Test fixtures shared by the integration tests.

mod client;
mod collector;
mod control;
mod http;
mod http2;
mod logs;
mod manual_upstream;
mod snapshot;
mod sse_clients;
mod test_gateway;
mod upstream;

pub(crate) use client::{Client, Reply, chat, get, post};
pub(crate) use collector::{Collector, attribute};
pub(crate) use control::{Control, ControlReceived, TOKEN};
pub(crate) use http::{Message, Reader};
pub(crate) use http2::{chat_over_http2, next_data};
pub(crate) use logs::logged;
pub(crate) use manual_upstream::{Exchange, ManualUpstream};
pub(crate) use snapshot::{KEY, SnapshotContent, backend, content, snapshot};
pub(crate) use sse_clients::{Seen, SseClient};
pub(crate) use test_gateway::{Options, TestGateway};
pub(crate) use upstream::{Barrier, Step, Upstream, events, json_response, raw};

use std::future::Future;
use std::time::Duration;

/// The timeout of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(15);

/// Waits for a future, and panics after the timeout.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}
