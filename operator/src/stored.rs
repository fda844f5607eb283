//! Resources as the API server stores them.
//!
//! A resource that was stored under an older or laxer definition may not decode.
//! Such a resource must not affect the others, so each one is decoded by itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fastllm_crds::{FastllmProxy, FastllmProxyStatus};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tokio::sync::Notify;

/// A stored resource.
#[derive(Clone)]
pub enum StoredProxy {
    /// A resource of a known form.
    Decoded(Box<FastllmProxy>),
    /// A resource that does not decode.
    Undecodable(Box<UndecodableProxy>),
}

/// A resource that does not decode.
#[derive(Clone, Debug, PartialEq)]
pub struct UndecodableProxy {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The members of the status that decode.
    pub status: FastllmProxyStatus,
    /// Path of the first invalid field and the expected form, without the value.
    pub defect: String,
}

impl StoredProxy {
    /// Decodes a resource. Members of the status that do not decode are dropped,
    /// since the next reconciliation writes them again.
    fn decode(mut stored: Value) -> Result<Self, String> {
        let status = decode_status(stored["status"].take());
        let metadata: ObjectMeta = decode(&stored["metadata"])?;
        Ok(match decode::<FastllmProxy>(&stored) {
            Ok(mut proxy) => {
                proxy.status = status;
                Self::Decoded(Box::new(proxy))
            }
            Err(defect) => Self::Undecodable(Box::new(UndecodableProxy {
                metadata,
                status: status.unwrap_or_default(),
                defect,
            })),
        })
    }
}

impl<'de> Deserialize<'de> for StoredProxy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Value::deserialize(deserializer)?;
        Self::decode(stored).map_err(D::Error::custom)
    }
}

/// Decodes a value; the error contains the path and no value.
fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        // Text before this part contains the value.
        let expected = match message.rsplit_once(", expected ") {
            Some((_, form)) if form.starts_with("struct ") => "expected an object".to_owned(),
            Some((_, form)) => format!("expected {form}"),
            None => message,
        };
        match path.as_str() {
            "." => expected,
            _ => format!("{path}: {expected}"),
        }
    })
}

fn decode_status(stored: Value) -> Option<FastllmProxyStatus> {
    let Value::Object(members) = stored else {
        return None;
    };
    let decodes = |name: &str, member: &Value| {
        let single = Map::from_iter([(name.to_owned(), member.clone())]);
        decode::<FastllmProxyStatus>(&Value::Object(single)).is_ok()
    };
    let valid = members
        .into_iter()
        .filter(|(name, member)| decodes(name, member))
        .collect();
    decode(&Value::Object(valid)).ok()
}

impl fmt::Debug for StoredProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meta = self.meta();
        write!(f, "StoredProxy({:?}, {:?})", meta.namespace, meta.name)
    }
}

impl Resource for StoredProxy {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        FastllmProxy::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        FastllmProxy::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        FastllmProxy::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        FastllmProxy::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Decoded(proxy) => &proxy.metadata,
            Self::Undecodable(proxy) => &proxy.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Decoded(proxy) => &mut proxy.metadata,
            Self::Undecodable(proxy) => &mut proxy.metadata,
        }
    }
}

/// An undecodable resource.
struct Entry {
    proxy: Arc<UndecodableProxy>,
    /// Whether it was reported to the user.
    reported: bool,
    /// Whether it is part of the current list.
    listed: bool,
}

/// The undecodable resources. Bounded by the number of stored resources.
#[derive(Default)]
pub struct UndecodableProxies {
    entries: Mutex<BTreeMap<(String, String), Entry>>,
    changed: Notify,
}

impl UndecodableProxies {
    /// Converts a watch event, and records the undecodable resources. Returns
    /// `None` for an undecodable resource in an initial list. One that became
    /// undecodable is removed from the cache of resources to reconcile.
    pub fn decoded(&self, event: Event<StoredProxy>) -> Option<Event<FastllmProxy>> {
        Some(match event {
            Event::Init => {
                let mut entries = self.entries.lock();
                entries.values_mut().for_each(|entry| entry.listed = false);
                Event::Init
            }
            Event::InitDone => {
                self.entries.lock().retain(|_, entry| entry.listed);
                Event::InitDone
            }
            Event::InitApply(stored) => Event::InitApply(self.record(stored)?),
            Event::Apply(stored) => {
                let metadata = stored.meta().clone();
                match self.record(stored) {
                    Some(proxy) => Event::Apply(proxy),
                    None => Event::Delete(without_spec(metadata)),
                }
            }
            Event::Delete(stored) => {
                self.entries.lock().remove(&key(stored.meta()));
                Event::Delete(match stored {
                    StoredProxy::Decoded(proxy) => *proxy,
                    StoredProxy::Undecodable(proxy) => without_spec(proxy.metadata),
                })
            }
        })
    }

    /// Returns the resource if it decodes, and records it otherwise.
    fn record(&self, stored: StoredProxy) -> Option<FastllmProxy> {
        let key = key(stored.meta());
        let mut entries = self.entries.lock();
        match stored {
            StoredProxy::Decoded(proxy) => {
                entries.remove(&key);
                Some(*proxy)
            }
            StoredProxy::Undecodable(proxy) => {
                let reported = entries
                    .get(&key)
                    .is_some_and(|known| known.reported && is_same(&known.proxy, &proxy));
                let proxy = Arc::from(proxy);
                let listed = true;
                entries.insert(
                    key,
                    Entry {
                        proxy,
                        reported,
                        listed,
                    },
                );
                self.changed.notify_one();
                None
            }
        }
    }

    /// Number of undecodable resources.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.lock().len()
    }

    /// Waits until a resource may have to be reported.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The resources that were not reported yet.
    #[must_use]
    pub fn unreported(&self) -> Vec<Arc<UndecodableProxy>> {
        let entries = self.entries.lock();
        let unreported = entries.values().filter(|entry| !entry.reported);
        unreported.map(|entry| Arc::clone(&entry.proxy)).collect()
    }

    /// Records that a resource was reported.
    pub fn set_reported(&self, proxy: &UndecodableProxy) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&key(&proxy.metadata))
            && is_same(&entry.proxy, proxy)
        {
            entry.reported = true;
        }
    }
}

fn key(meta: &ObjectMeta) -> (String, String) {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    (text(&meta.namespace), text(&meta.name))
}

/// Whether two states of a resource need one report.
fn is_same(known: &UndecodableProxy, current: &UndecodableProxy) -> bool {
    known.metadata.uid == current.metadata.uid
        && known.metadata.generation == current.metadata.generation
        && known.defect == current.defect
}

/// A resource that only identifies one to remove from the cache.
fn without_spec(metadata: ObjectMeta) -> FastllmProxy {
    FastllmProxy {
        metadata,
        ..FastllmProxy::default()
    }
}

impl UndecodableProxy {
    /// A reference to the resource.
    #[must_use]
    pub fn object_ref(&self) -> ObjectReference {
        without_spec(self.metadata.clone()).object_ref(&())
    }
}

#[cfg(test)]
mod tests;
