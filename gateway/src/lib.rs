//! The data plane: sockets, upstream connections, snapshot sources, reports,
//! telemetry. Every decision about a request is [`fastllm_engine`]'s.
//!
//! A request goes through `serve`, then through the rooms that `pipeline` walks
//! in order, then through `forward`. Nothing on that path touches a file, a
//! database or a resolver; `snapshot`, `report` and `probe` run beside it.

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
pub use http::{CorsOrigin, ForwardedHeader};
pub use snapshot::file as configuration_file;
pub use telemetry::{MetadataLabels, OtelProtocol};

use std::future::Future;
use std::io;

/// The runtime for what runs beside the requests, which have threads of their
/// own.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("background")
        .build()
}

/// Runs a gateway until `shutdown` resolves and running answers have finished.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
    Gateway::bind(config)?.serve(shutdown).await
}
