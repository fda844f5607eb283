//! Read-your-writes consistency for a watch cache.
//!
//! A watch cache lags behind the operator's own writes. Acting on the older state
//! would repeat a write or change a transition time, so recent writes are kept
//! until the cache has caught up.
//!
//! The API server's response to an apply may differ from the applied manifest: an
//! admission policy rewrites a field, or an older release drops one. The response
//! is recorded, so that the difference is not mistaken for an edit.

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

/// How long a recent write replaces the cached state. By then the cache also shows
/// an object that was deleted right after the write.
const WRITE_TTL: Duration = Duration::from_secs(10);

/// Recently written objects with the time of the write.
type RecentWrites<K> = HashMap<ObjectRef<K>, (Instant, Arc<K>)>;

/// A watch cache, with the recent writes to its objects.
pub struct MutationCache<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store: Store<K>,
    written: Mutex<RecentWrites<K>>,
    /// The [`content_hash`] of each object in the response to its last apply.
    applied_hashes: Mutex<HashMap<ObjectRef<K>, String>>,
}

impl<K> MutationCache<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + 'static,
{
    /// Wraps a watch cache.
    #[must_use]
    pub fn new(store: Store<K>) -> Self {
        Self {
            store,
            written: Mutex::default(),
            applied_hashes: Mutex::default(),
        }
    }

    /// The watch cache.
    #[must_use]
    pub fn store(&self) -> &Store<K> {
        &self.store
    }

    /// The latest known state of an object.
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

    /// Records the response to a write.
    pub fn record_write(&self, object: K) {
        let mut written = self.written.lock();
        written.retain(|_, (at, _)| at.elapsed() <= WRITE_TTL);
        written.insert(
            ObjectRef::from_obj(&object),
            (Instant::now(), Arc::new(object)),
        );
    }

    /// Records the response to an apply.
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

    /// Whether an object did not change since its last apply.
    #[must_use]
    pub fn is_unmodified(&self, object: &K) -> bool
    where
        K: Serialize,
    {
        let applied_hashes = self.applied_hashes.lock();
        applied_hashes
            .get(&ObjectRef::from_obj(object))
            .is_some_and(|applied| *applied == content_hash(object))
    }

    /// Removes a deleted object.
    pub fn forget(&self, namespace: &str, name: &str) {
        let key = ObjectRef::new(name).within(namespace);
        self.written.lock().remove(&key);
    }
}

/// Hash of what an apply decides: everything except the status and the metadata,
/// plus the hash of the applied manifest.
pub(crate) fn content_hash<K: Resource + Serialize>(object: &K) -> String {
    let mut body = to_json(object);
    let applied = annotation(object.meta(), APPLIED_HASH).unwrap_or_default();
    if let Some(members) = body.as_object_mut() {
        members.remove("status");
        members.insert("metadata".to_owned(), Value::from(applied));
    }
    json_hash(&body)
}

/// Whether the cached state is older than the written one. Resource versions are
/// compared as numbers; otherwise the cached state is preferred.
fn is_older<K: Resource>(cached: &K, written: &K) -> bool {
    let version = |object: &K| object.resource_version()?.parse::<u128>().ok();
    match (version(cached), version(written)) {
        (Some(cached), Some(written)) => cached < written,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
