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
pub(crate) struct Names {
    known: Mutex<HashMap<Arc<str>, Known>>,
    /// Names that somebody wants looked up soon.
    asked: Mutex<HashSet<Arc<str>>>,
    bell: Notify,
    /// Changes with every look-up that has ended.
    news: watch::Sender<()>,
}

/// What is known of one name.
#[derive(Debug, Default)]
struct Known {
    /// Those that the last good look-up found, the families by turns.
    addresses: Vec<IpAddr>,
    /// Where the next connection begins.
    turn: usize,
    /// How many look-ups have ended.
    looked_up: u64,
}

impl Names {
    /// The addresses in the order in which they are to be tried, each time from
    /// the next one on. Where none is known yet it waits for the end of a
    /// look-up, however long that takes.
    ///
    /// # Errors
    /// The look-up has failed, and so has every one before it.
    pub(super) async fn addresses(&self, name: &Arc<str>) -> io::Result<Vec<IpAddr>> {
        let mut news = self.news.subscribe();
        let before = match self.take_turn(name) {
            Ok(addresses) => return Ok(addresses),
            Err(looked_up) => looked_up,
        };
        self.ask(name);
        loop {
            news.changed().await.map_err(io::Error::other)?;
            match self.take_turn(name) {
                Ok(addresses) => return Ok(addresses),
                Err(looked_up) if looked_up > before => {
                    return Err(io::ErrorKind::HostUnreachable.into());
                }
                Err(_) => {}
            }
        }
    }

    /// Asks for a fresh look-up; it comes when the name's last one is not too
    /// recent.
    pub(super) fn ask(&self, name: &Arc<str>) {
        self.asked.lock().insert(Arc::clone(name));
        self.bell.notify_one();
    }

    /// The number of look-ups where no address is known.
    fn take_turn(&self, name: &Arc<str>) -> Result<Vec<IpAddr>, u64> {
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(name) else {
            return Err(0);
        };
        if known.addresses.is_empty() {
            return Err(known.looked_up);
        }
        let mut addresses = known.addresses.clone();
        addresses.rotate_left(known.turn % known.addresses.len());
        known.turn = known.turn.wrapping_add(1);
        Ok(addresses)
    }

    /// Takes the end of a look-up. One that found nothing leaves what is known.
    fn looked_up(&self, name: Arc<str>, found: Vec<IpAddr>) {
        let mut known = self.known.lock();
        let known = known.entry(name).or_default();
        if !found.is_empty() {
            known.addresses = by_turns(found);
        }
        known.looked_up += 1;
        self.news.send_replace(());
    }

    /// Forgets all other names.
    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.known.lock().retain(|name, _| keep(name));
    }
}

/// Each address once, the families by turns from the first one's on: where one
/// of them leads nowhere, the second try is of the other.
fn by_turns(found: Vec<IpAddr>) -> Vec<IpAddr> {
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
