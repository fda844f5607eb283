//! The identity of a plane's pods: an account without a token, since neither
//! plane talks to Kubernetes.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::BuildContext;
use crate::names::{Component, metadata};

/// The account of a plane.
#[must_use]
pub fn service_account(wanted: BuildContext<'_>, component: Component) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(wanted.proxy, component),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
