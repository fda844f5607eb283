//! Where the names of upstreams lead. One task looks them up, beside the
//! request path; whoever connects only reads.

mod resolver;

pub(crate) use resolver::Resolver;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// The addresses of every name that is in use. Holds no more names than
/// snapshots have named.
#[derive(Debug, Default)]
pub(crate) struct DnsCache {
    entries: Mutex<HashMap<Arc<str>, DnsEntry>>,
    /// Names that somebody wants looked up soon.
    requested: Mutex<HashSet<Arc<str>>>,
    requested_notify: Notify,
    /// Changes with every look-up that has ended.
    updates: watch::Sender<()>,
}

/// What is known of one name.
#[derive(Debug, Default)]
struct DnsEntry {
    /// Those that the last good look-up found, the families by turns.
    addresses: Vec<IpAddr>,
    /// Where the next connection begins.
    next_start: usize,
    /// How many look-ups have ended.
    record_lookup: u64,
}

impl DnsCache {
    /// The addresses in the order in which they are to be tried, each time from
    /// the next one on. Where none is known yet it waits for the end of a
    /// look-up, however long that takes.
    ///
    /// # Errors
    /// The look-up has failed, and so has every one before it.
    pub(crate) async fn addresses(&self, name: &Arc<str>) -> io::Result<Vec<IpAddr>> {
        let mut updates = self.updates.subscribe();
        let before = match self.rotated_addresses(name) {
            Ok(addresses) => return Ok(addresses),
            Err(record_lookup) => record_lookup,
        };
        self.request_lookup(name);
        loop {
            updates.changed().await.map_err(io::Error::other)?;
            match self.rotated_addresses(name) {
                Ok(addresses) => return Ok(addresses),
                Err(record_lookup) if record_lookup > before => {
                    return Err(io::ErrorKind::HostUnreachable.into());
                }
                Err(_) => {}
            }
        }
    }

    /// Asks for a fresh look-up; it comes when the name's last one is not too
    /// recent.
    pub(crate) fn request_lookup(&self, name: &Arc<str>) {
        self.requested.lock().insert(Arc::clone(name));
        self.requested_notify.notify_one();
    }

    /// The number of look-ups where no address is known.
    fn rotated_addresses(&self, name: &Arc<str>) -> Result<Vec<IpAddr>, u64> {
        let mut entries = self.entries.lock();
        let Some(entries) = entries.get_mut(name) else {
            return Err(0);
        };
        if entries.addresses.is_empty() {
            return Err(entries.record_lookup);
        }
        let mut addresses = entries.addresses.clone();
        addresses.rotate_left(entries.next_start % entries.addresses.len());
        entries.next_start = entries.next_start.wrapping_add(1);
        Ok(addresses)
    }

    /// Takes the end of a look-up. One that found nothing leaves what is known.
    fn record_lookup(&self, name: Arc<str>, found: Vec<IpAddr>) {
        let mut entries = self.entries.lock();
        let entries = entries.entry(name).or_default();
        if !found.is_empty() {
            entries.addresses = interleave_families(found);
        }
        entries.record_lookup += 1;
        self.updates.send_replace(());
    }

    /// Forgets all other names.
    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.entries.lock().retain(|name, _| keep(name));
    }
}

/// Each address once, the families by turns from the first one's on: where one
/// of them leads nowhere, the second try is of the other.
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
