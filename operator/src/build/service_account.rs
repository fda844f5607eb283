//! The identity of a plane's pods. It has no token, since neither plane calls the
//! Kubernetes API.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::BuildContext;
use crate::names::{Component, metadata};

/// Builds the `ServiceAccount` of a plane.
#[must_use]
pub fn service_account(context: BuildContext<'_>, component: Component) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(context.proxy, component),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
