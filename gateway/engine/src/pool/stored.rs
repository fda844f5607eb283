//! Requests that refer to an object that a backend stores, such as a previous
//! response or a conversation.

use super::{NoSlot, PickContext, Pool};
use crate::hash::{mix, seed};

/// The hash of the ID of a stored object, the same on every gateway.
pub fn object_hash(id: &str) -> u64 {
    mix(seed(id))
}

impl Pool {
    /// Remembers that the backend at `index` stores this object, by the hash of
    /// its ID.
    pub fn record_owner(&self, index: usize, object: u64) {
        if let Some(backend) = self.backends.get(index) {
            self.affinity.set_owner(object, backend.mark());
        }
    }

    /// Whether one of the backends is remembered to store one of these objects.
    pub(crate) fn has_owner(&self, stored: &[u64]) -> bool {
        self.owner(stored).is_some()
    }

    /// The backend that is remembered to store the first of these objects whose
    /// owner is in this pool and accepts requests.
    fn owner(&self, stored: &[u64]) -> Option<usize> {
        stored.iter().find_map(|object| {
            let mark = self.affinity.owner(*object)?;
            let mut open = self.open();
            open.find_map(|(index, backend)| (backend.mark() == mark).then_some(index))
        })
    }

    /// The owner, if a request with this context goes to no other backend.
    pub(super) fn required(&self, tried: &[usize], pick: &PickContext<'_>) -> Option<usize> {
        let owner = self.owner(pick.stored)?;
        let state = self.backends[owner].state();
        (!tried.contains(&owner) && state.is_available(pick.at, pick.endpoint)).then_some(owner)
    }

    /// The backend for a request that refers to stored objects: the owner, even if
    /// it is full. If none is remembered or it is unavailable, the others follow
    /// in an order that depends on the objects only, so that every gateway begins
    /// with the same backend.
    pub(super) fn choose_by_owner(
        &self,
        tried: &[usize],
        pick: &PickContext<'_>,
    ) -> Result<usize, NoSlot> {
        if let Some(owner) = self.required(tried, pick) {
            return if self.backends[owner].has_capacity() {
                Ok(owner)
            } else {
                Err(NoSlot::Full)
            };
        }
        let untried = || self.open().filter(|(index, _)| !tried.contains(index));
        let first = pick.stored.first().copied().unwrap_or_default();
        for tier in 0..4 {
            let within = untried().filter(|(_, backend)| match tier {
                0 => backend.weight() > 0 && backend.state().is_available(pick.at, pick.endpoint),
                1 => backend.state().is_available(pick.at, pick.endpoint),
                2 => backend.state().healthy(),
                _ => true,
            });
            let mut found = false;
            let free = within.filter(|(_, backend)| {
                found = true;
                backend.has_capacity()
            });
            let best = free.min_by_key(|(_, backend)| mix(first ^ u64::from(backend.mark())));
            match best {
                Some((index, _)) => return Ok(index),
                None if found => return Err(NoSlot::Full),
                None => {}
            }
        }
        Err(NoSlot::Exhausted)
    }
}

#[cfg(test)]
mod tests;
