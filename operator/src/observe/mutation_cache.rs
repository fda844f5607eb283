//! Read-your-writes over a watch cache.
//!
//! A watch cache lags behind what we have just written. A pass that read the
//! older state would repeat a write, or move a transition time, so what was
//! written last is kept beside the cache until the cache has caught up.
//!
//! What the API server answers to a write may differ from what was sent: an
//! admission policy rewrites a field, an older release drops one. The answer is
//! remembered, so that the difference is not taken for somebody's edit.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::hash::{json_hash, to_json};
use crate::names::{APPLIED_HASH, annotation};

/// Longest time that a written object is believed in without the cache: an
/// object that was deleted right after it was written shows up as such by then.
const WRITE_TTL: Duration = Duration::from_secs(10);

/// What was written, and when.
type RecentWrites<K> = HashMap<ObjectRef<K>, (Instant, Arc<K>)>;

/// A watch cache, and what was written since.
pub struct MutationCache<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store: Store<K>,
    written: Mutex<RecentWrites<K>>,
    /// What the last apply of each object made of it, as [`form`].
    applied_hashes: Mutex<HashMap<ObjectRef<K>, String>>,
}

impl<K> MutationCache<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + 'static,
{
    /// Wraps a cache.
    #[must_use]
    pub fn new(store: Store<K>) -> Self {
        Self {
            store,
            written: Mutex::default(),
            applied_hashes: Mutex::default(),
        }
    }

    /// The cache.
    #[must_use]
    pub fn store(&self) -> &Store<K> {
        &self.store
    }

    /// The newest state that is known of an object.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let key = ObjectRef::new(name).within(namespace);
        let cached = self.store.get(&key);
        let mut written = self.written.lock();
        let Some((at, object)) = written.get(&key) else {
            return cached;
        };
        let caught_up = cached
            .as_deref()
            .is_some_and(|cached| !is_older(cached, object));
        if caught_up || at.elapsed() > WRITE_TTL {
            written.remove(&key);
            return cached;
        }
        Some(Arc::clone(object))
    }

    /// Remembers the answer to a write.
    pub fn record_write(&self, object: K) {
        let mut written = self.written.lock();
        written.retain(|_, (at, _)| at.elapsed() <= WRITE_TTL);
        written.insert(
            ObjectRef::from_obj(&object),
            (Instant::now(), Arc::new(object)),
        );
    }

    /// Remembers the answer to an apply.
    pub fn record_apply(&self, object: K)
    where
        K: Serialize,
    {
        let mut applied_hashes = self.applied_hashes.lock();
        applied_hashes.retain(|key, _| self.store.get(key).is_some());
        applied_hashes.insert(ObjectRef::from_obj(&object), content_hash(&object));
        drop(applied_hashes);
        self.record_write(object);
    }

    /// Whether an object is still as the last apply of it left it.
    #[must_use]
    pub fn is_unmodified(&self, object: &K) -> bool
    where
        K: Serialize,
    {
        let applied_hashes = self.applied_hashes.lock();
        applied_hashes
            .get(&ObjectRef::from_obj(object))
            .is_some_and(|answer| *answer == content_hash(object))
    }

    /// Forgets an object that was deleted.
    pub fn forget(&self, namespace: &str, name: &str) {
        let key = ObjectRef::new(name).within(namespace);
        self.written.lock().remove(&key);
    }
}

/// Hash of what an apply decides about an object: everything but its metadata,
/// of which others keep some, and its status. Which apply it was belongs to it.
pub(crate) fn content_hash<K: Resource + Serialize>(object: &K) -> String {
    let mut body = to_json(object);
    let applied = annotation(object.meta(), APPLIED_HASH).unwrap_or_default();
    if let Some(members) = body.as_object_mut() {
        members.remove("status");
        members.insert("metadata".to_owned(), Value::from(applied));
    }
    json_hash(&body)
}

/// Whether one state of an object is older than another. Resource versions of
/// one kind compare as numbers; where they are not numbers, the cache is believed.
fn is_older<K: Resource>(cached: &K, written: &K) -> bool {
    let version = |object: &K| object.resource_version()?.parse::<u128>().ok();
    match (version(cached), version(written)) {
        (Some(cached), Some(written)) => cached < written,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
