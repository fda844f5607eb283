//! Faults between clients and upstreams, and their effects on the client, the
//! upstream, the usage events and the metrics. The tests use real sockets.
//!
//! Cases that do not depend on the framing of requests are generic over
//! [`client::TestProtocol`].
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod case;
mod client;
mod client_disconnects;
mod connections;
mod counters;
mod http2;
mod isolation;
mod multiplexing;
mod pressure;
mod requests;
mod responses;
mod smuggling;
mod streams;
#[path = "../gateway/support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the suite of the gateway uses the rest"
)]
mod support;
