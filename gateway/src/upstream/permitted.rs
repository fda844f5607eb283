//! Checks of the addresses to which connections are made.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use fastllm_process::upstream_addresses::UpstreamAddresses;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// The address of an upstream is not one that upstreams may have.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the address is not permitted for upstreams; see --allow-upstream-cidr")]
pub(super) struct NotPermitted;

/// Checks a single address. A name is checked when it is resolved, since it can lead
/// anywhere.
pub(super) fn check(addresses: &UpstreamAddresses, address: IpAddr) -> Result<(), NotPermitted> {
    addresses.permits(address).then_some(()).ok_or(NotPermitted)
}

/// Resolves names to permitted addresses only.
pub(super) struct PermittedResolver(pub(super) Arc<UpstreamAddresses>);

impl Resolve for PermittedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let addresses = Arc::clone(&self.0);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let permitted = found.filter(|found| check(&addresses, found.ip()).is_ok());
            let permitted: Vec<SocketAddr> = permitted.collect();
            if permitted.is_empty() {
                return Err(NotPermitted.into());
            }
            let permitted: Addrs = Box::new(permitted.into_iter());
            Ok(permitted)
        })
    }
}
