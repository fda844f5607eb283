//! Tests of the control plane as a process with PostgreSQL. `DATABASE_URL` names a
//! server with a superuser.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue has failed"
)]

mod access;
mod accounting;
mod allowances;
mod audit;
mod bodies;
mod cascades;
mod concurrency;
mod encryption_key;
mod escalation;
mod harness;
mod history;
mod lifecycle;
mod login_throttle;
mod openapi;
mod pooler;
mod prices;
mod proxy;
mod proxy_tokens;
mod races;
mod reconcile;
mod rejected;
mod reports;
mod resources;
mod routing;
mod settlement;
mod snapshots;
mod spending;
mod tls;
mod usage;
