//! The admin listener: router, TLS, connections and probes.

mod client_address;
mod listener;
mod probes;
mod router;

pub(crate) use listener::Listener;
pub(crate) use router::router;
