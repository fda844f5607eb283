//! The operator's code against a real API server. `make test` brings one up and
//! names it; the tests play the Deployment controller and the kubelet.
//!
//! Each test has a namespace and an operator of its own. The operators run as
//! the service account of `config/rbac`, so a missing rule fails a test, and
//! each has a user agent of its own, by which the audit log tells what it did.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod admission;
mod cluster;
mod controllers;
mod leadership;
mod lifecycle;
mod rollout;
mod secrets;
