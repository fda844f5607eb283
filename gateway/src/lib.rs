//! The data plane: sockets, upstream connections, snapshot sources, reports,
//! telemetry. Every decision about a request is [`fastllm_engine`]'s.
//!
//! A request goes through `serve`, then through the rooms that `pipeline` walks
//! in order, then through `forward`. Nothing on that path touches a file, a
//! database or a resolver; `snapshot`, `report` and `probe` run beside it.

mod app;
mod cached;
pub mod cli;
mod clock;
mod config;
mod deadline;
mod estimate;
mod forward;
mod link;
mod metadata;
mod pipeline;
mod plane;
mod probe;
mod prompt;
mod record;
mod report;
mod scratch;
mod serve;
mod snapshot;
mod socket;
#[cfg(test)]
mod steps;
mod tasks;
mod telemetry;
mod tls;
mod workers;

pub use app::{Error, Gateway};
pub use config::{CacheScope, Config, OriginError};
pub use forward::ForwardedHeader;
pub use link::ControlUrl;
pub use serve::CorsOrigin;
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
