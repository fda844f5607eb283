//! Integration tests of the gateway over real sockets, with a scripted
//! upstream and a scripted control plane.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod backend_concurrency;
mod cache;
mod cache_isolation;
mod chat;
mod client_disconnects;
mod compressed;
mod cors;
mod endpoints;
mod estimates;
mod failover;
mod fallbacks;
mod files;
mod heartbeats;
mod inserted_events;
mod lifecycle;
mod limits;
mod metadata;
mod probes;
mod quantities;
mod queries;
mod rejections;
mod reports;
mod retries;
mod secrets;
mod snapshots;
mod stored_responses;
mod stream_endings;
mod streams;
#[expect(dead_code, reason = "the suite of faults uses the rest")]
mod support;
mod time_limits;
mod tls;
mod tls_clients;
mod traces;
mod uploads;
mod upstream_credentials;
mod upstream_errors;
mod usage_spill;
