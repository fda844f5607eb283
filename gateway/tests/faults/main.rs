//! What goes wrong between a client and an upstream, and what each of them,
//! the account and the metrics have to see of it. Everything goes over real
//! sockets; what a case expects is what the design asks for.
//!
//! Cases that do not depend on how a client frames its requests are written
//! for any [`client::TestProtocol`].
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod answers;
mod case;
mod client;
mod connections;
mod counters;
mod http2;
mod isolation;
mod leaving;
mod multiplexing;
mod pressure;
mod requests;
mod smuggling;
mod streams;
#[path = "../gateway/support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the suite of the gateway uses the rest"
)]
mod support;
