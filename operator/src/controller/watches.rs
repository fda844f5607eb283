//! The watches that fill the caches and trigger reconciliations.

use std::convert::Infallible;
use std::sync::Arc;

use fastllm_crds::FastllmProxy;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{Predicate as _, PredicateConfig, WatchStreamExt as _, predicates};
use kube::{Client, Resource, ResourceExt as _};

use crate::definition;
use crate::error::Chain;
use crate::metrics::Metrics;
use crate::names::{FIELD_MANAGER, INSTANCE, MANAGED_BY};
use crate::object::NamespacedObject;
use crate::secrets::required_references;
use crate::stored::{StoredProxy, UndecodableProxies};

/// Whether the API server does not serve the watched kind.
fn is_not_found(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(source)
    | watcher::Error::WatchStartFailed(source)
    | watcher::Error::WatchFailed(source)) = error
    else {
        return false;
    };
    matches!(source, kube::Error::Api(status) if status.code == 404)
}

/// The resources to reconcile.
pub(super) type Trigger = BoxStream<'static, Result<ObjectRef<FastllmProxy>, Infallible>>;

/// Creates watches of one namespace or of all.
pub(super) struct Watches<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: Option<&'a str>,
    pub(super) metrics: &'a Arc<Metrics>,
}

impl Watches<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn watch<K: NamespacedObject>(
        &self,
        writer: Writer<K>,
        config: watcher::Config,
    ) -> BoxStream<'static, K> {
        // The managed fields are unused and make up half of an object.
        let events = watcher(self.api::<K>(), config)
            .modify(|object| object.meta_mut().managed_fields = None);
        self.log_errors(events.reflect(writer).default_backoff().touched_objects())
    }

    /// Logs and drops the errors of a watch, which reconnects by itself.
    fn log_errors<K: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
    ) -> BoxStream<'static, K> {
        let metrics = Arc::clone(self.metrics);
        let objects = stream.filter_map(move |item| {
            let item = item.inspect_err(|error| {
                metrics.record_watch_restart();
                if is_not_found(error) {
                    tracing::debug!(error = %Chain(error), "watch disconnected");
                } else {
                    tracing::warn!(error = %Chain(error), "watch disconnected");
                }
            });
            std::future::ready(item.ok())
        });
        objects.boxed()
    }

    /// The resources. A changed status does not trigger a reconciliation:
    /// otherwise an error whose message differs on each attempt would be
    /// retried immediately, without an end. Resources that do not decode are
    /// recorded in `undecodable` instead.
    pub(super) fn resources(
        &self,
        undecodable: &Arc<UndecodableProxies>,
    ) -> (Store<FastllmProxy>, Trigger) {
        let (store, writer) = reflector::store::<FastllmProxy>();
        let (undecodable, metrics) = (Arc::clone(undecodable), Arc::clone(self.metrics));
        let events = watcher(self.api::<StoredProxy>(), watcher::Config::default())
            .modify(|stored: &mut StoredProxy| stored.meta_mut().managed_fields = None)
            .filter_map(move |event| {
                let event = event.map(|event| undecodable.decoded(event)).transpose();
                metrics.set_undecodable(undecodable.count());
                std::future::ready(event)
            });
        let changed = events
            .reflect(writer)
            .default_backoff()
            .touched_objects()
            .predicate_filter(
                predicates::generation.combine(predicates::annotations),
                PredicateConfig::default(),
            );
        let changed = changed.inspect_err(|error| {
            if is_not_found(error) {
                tracing::warn!("{}", definition::not_installed());
            }
        });
        let stream = self.log_errors(changed);
        let stream = stream.map(|proxy| Ok(ObjectRef::from_obj(&proxy)));
        (store, stream.boxed())
    }

    /// Objects with the operator's label. Each triggers the resource that its
    /// instance label names.
    pub(super) fn children<K: NamespacedObject>(&self) -> (Store<K>, Trigger) {
        let (store, writer) = reflector::store::<K>();
        let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={FIELD_MANAGER}"));
        let stream = self.watch(writer, ours).filter_map(|child| {
            let resource = child.labels().get(INSTANCE).map(|name| {
                Ok(ObjectRef::new(name).within(&child.namespace().unwrap_or_default()))
            });
            std::future::ready(resource)
        });
        (store, stream.boxed())
    }

    /// Metadata of Secrets. Each triggers the resources that reference it.
    pub(super) fn secrets(
        &self,
        proxies: Store<FastllmProxy>,
    ) -> (Store<PartialObjectMeta<Secret>>, Trigger) {
        let (store, writer) = reflector::store::<PartialObjectMeta<Secret>>();
        let events = watcher(
            self.api::<PartialObjectMeta<Secret>>(),
            watcher::Config::default(),
        )
        .modify(|secret: &mut PartialObjectMeta<Secret>| {
            secret.metadata.managed_fields = None;
            // `kubectl apply` stores the whole Secret in an annotation.
            secret.metadata.annotations = None;
            secret.metadata.labels = None;
        });
        let touched = self.log_errors(events.reflect(writer).default_backoff().touched_objects());
        let stream = touched.flat_map(move |secret| {
            let referencing = proxies.state_filter(|proxy| {
                proxy.namespace() == secret.namespace()
                    && required_references(proxy, false)
                        .iter()
                        .any(|(_, r)| r.name == secret.name_any())
            });
            stream::iter(
                referencing
                    .into_iter()
                    .map(|proxy| Ok(ObjectRef::from_obj(proxy.as_ref()))),
            )
        });
        (store, stream.boxed())
    }
}
