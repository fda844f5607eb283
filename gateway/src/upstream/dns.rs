//! Addresses of upstream names. One task looks them up, beside the request path;
//! connecting only reads them.

mod resolver;

pub(crate) use resolver::Resolver;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// The addresses of every name in use. Contains only names from snapshots.
#[derive(Debug, Default)]
pub(crate) struct DnsCache {
    entries: Mutex<HashMap<Arc<str>, DnsEntry>>,
    /// The names with a requested lookup.
    requested: Mutex<HashSet<Arc<str>>>,
    requested_notify: Notify,
    /// Notified at the end of each lookup.
    updates: watch::Sender<()>,
}

/// The state of one name.
#[derive(Debug, Default)]
struct DnsEntry {
    /// The addresses of the last successful lookup, alternating between
    /// families.
    addresses: Vec<IpAddr>,
    /// The index of the first address for the next connection.
    next_start: usize,
    /// The number of finished lookups.
    finished_lookups: u64,
}

impl DnsCache {
    /// The addresses in the order in which they are to be tried; each call
    /// starts at the next one. If none is known yet, it waits for the end of a
    /// lookup, without a timeout.
    ///
    /// # Errors
    /// The lookup has failed, and so have all earlier ones.
    pub(crate) async fn addresses(&self, name: &Arc<str>) -> io::Result<Vec<IpAddr>> {
        let mut updates = self.updates.subscribe();
        let before = match self.rotated_addresses(name) {
            Ok(addresses) => return Ok(addresses),
            Err(finished_lookups) => finished_lookups,
        };
        self.request_lookup(name);
        loop {
            updates.changed().await.map_err(io::Error::other)?;
            match self.rotated_addresses(name) {
                Ok(addresses) => return Ok(addresses),
                Err(finished_lookups) if finished_lookups > before => {
                    return Err(io::ErrorKind::HostUnreachable.into());
                }
                Err(_) => {}
            }
        }
    }

    /// Requests a new lookup; it is delayed if the last one of the name was
    /// recent.
    pub(crate) fn request_lookup(&self, name: &Arc<str>) {
        self.requested.lock().insert(Arc::clone(name));
        self.requested_notify.notify_one();
    }

    /// The number of finished lookups, if no address is known.
    fn rotated_addresses(&self, name: &Arc<str>) -> Result<Vec<IpAddr>, u64> {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(name) else {
            return Err(0);
        };
        if entry.addresses.is_empty() {
            return Err(entry.finished_lookups);
        }
        let mut addresses = entry.addresses.clone();
        addresses.rotate_left(entry.next_start % entry.addresses.len());
        entry.next_start = entry.next_start.wrapping_add(1);
        Ok(addresses)
    }

    /// Stores the result of a lookup. An empty result does not replace known
    /// addresses.
    fn record_lookup(&self, name: Arc<str>, found: Vec<IpAddr>) {
        let mut entries = self.entries.lock();
        let entry = entries.entry(name).or_default();
        if !found.is_empty() {
            entry.addresses = interleave_families(found);
        }
        entry.finished_lookups += 1;
        self.updates.send_replace(());
    }

    /// Removes all other names.
    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.entries.lock().retain(|name, _| keep(name));
    }
}

/// Removes duplicates and alternates between address families, starting with
/// that of the first address: if one family is unreachable, the second attempt
/// uses the other.
fn interleave_families(found: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut seen = HashSet::new();
    let first = found.first().is_some_and(IpAddr::is_ipv6);
    let (ours, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .filter(|address| seen.insert(*address))
        .partition(|address| address.is_ipv6() == first);
    let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
    let mut ordered = Vec::with_capacity(seen.len());
    while ordered.len() < seen.len() {
        ordered.extend(ours.next());
        ordered.extend(others.next());
    }
    ordered
}

#[cfg(test)]
mod tests;
