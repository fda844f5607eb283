//! The control plane as its own process, against real Postgres: `DATABASE_URL`
//! names a server where a superuser may create databases.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod access;
mod accounting;
mod allowances;
mod audit;
mod harness;
mod lifecycle;
mod openapi;
mod prices;
mod proxy;
mod races;
mod reconcile;
mod rejected;
mod resources;
mod routing;
mod snapshots;
mod spending;
mod tls;
mod usage;
