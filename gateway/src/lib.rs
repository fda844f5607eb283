//! The data plane: sockets, upstream connections, snapshot sources, reports,
//! telemetry. Every decision about a request is made by [`fastllm_engine`].
//!
//! A request is accepted by `serve`, then authenticated and admitted by
//! `pipeline`, then sent by `forward` over a connection of `upstream`. Nothing on
//! that path touches a file, a database or a resolver; `control_plane`, the
//! sources in `snapshot`, and the probes and DNS lookups of `upstream` run beside
//! it. `runtime`, `http` and `telemetry` are used by all of them. Each component
//! is built from its own `Config`; `app` ties them together, and only `cli` depends on
//! the flags.

mod app;
#[cfg(feature = "bench")]
pub mod bench;
mod cache;
pub mod cli;
mod control_plane;
mod forward;
mod http;
mod pipeline;
mod request_log;
mod runtime;
mod serve;
mod snapshot;
mod telemetry;
mod tls;
mod upstream;

pub use app::{Config, Error, Gateway};
pub use control_plane::ControlUrl;
pub use http::{CorsOrigin, ForwardedHeader, ForwardedParameter, ForwardedResponseHeader};
pub use snapshot::file as configuration_file;
pub use telemetry::{MetadataLabels, OtelProtocol};

use std::future::Future;
use std::io;

/// The runtime of background tasks. Requests have threads of their own.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("background")
        .build()
}

/// Runs a gateway until `shutdown` resolves and running responses have finished.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
    Gateway::bind(config)?.serve(shutdown).await
}
