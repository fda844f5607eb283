//! The admin listener: routes put together, TLS, connections, probes.

mod listener;
mod probes;
mod router;

pub(crate) use listener::Listener;
pub(crate) use router::{in_time, router};
