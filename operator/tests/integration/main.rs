//! Tests of the operator against a real API server, which `make test` starts. The
//! tests simulate the Deployment and Job controllers and the kubelet.
//!
//! Each test has its own namespace and operator. The operators run as the service
//! account of `config/rbac`, so that a missing rule fails a test, and each has its
//! own user agent, which identifies its requests in the audit log.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod admission;
mod cluster;
mod controllers;
mod failures;
mod leadership;
mod lifecycle;
mod ownership;
mod pacing;
mod rollout;
mod scaling;
mod secrets;
mod stored;
