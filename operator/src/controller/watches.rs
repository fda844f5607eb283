//! The watches that fill the caches and trigger reconciliations.

use std::convert::Infallible;
use std::sync::Arc;

use fastllm_crds::FastllmProxy;
use futures_util::stream::{self, BoxStream, SelectAll};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{Predicate as _, PredicateConfig, WatchStreamExt as _, predicates};
use kube::{Client, Resource, ResourceExt as _};

use crate::definition;
use crate::error::Chain;
use crate::metrics::Metrics;
use crate::names::{Component, FIELD_MANAGER, INSTANCE, MANAGED_BY};
use crate::object::NamespacedObject;
use crate::observe::{Caches, MutationCache, SecretReader};
use crate::scaling::{retain_managers_of_replicas, target_of};
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

    /// Starts all watches. Resources that do not decode are recorded in `undecodable`.
    pub(super) fn start(
        &self,
        undecodable: &Arc<UndecodableProxies>,
    ) -> (Caches, SelectAll<Trigger>) {
        let mut triggers = SelectAll::new();
        let (proxies, stream) = self.resources(undecodable);
        triggers.push(stream);
        let (deployments, stream) = self.children::<Deployment>();
        triggers.push(stream);
        let (services, stream) = self.children::<Service>();
        triggers.push(stream);
        let (accounts, stream) = self.children::<ServiceAccount>();
        triggers.push(stream);
        let (jobs, stream) = self.children::<Job>();
        triggers.push(stream);
        let (pods, stream) = self.children::<Pod>();
        triggers.push(stream);
        let (endpoints, stream) = self.children::<EndpointSlice>();
        triggers.push(stream);
        let (autoscalers, stream) = self.autoscalers();
        triggers.push(stream);
        let (secrets, stream) = self.secrets(proxies.clone());
        triggers.push(stream);
        let caches = Caches {
            proxies: MutationCache::new(proxies),
            deployments: MutationCache::new(deployments),
            services: MutationCache::new(services),
            accounts: MutationCache::new(accounts),
            jobs: MutationCache::new(jobs),
            pods,
            endpoints,
            autoscalers,
            secrets: SecretReader::new(self.client.clone(), secrets),
        };
        (caches, triggers)
    }

    fn watch<K: NamespacedObject>(
        &self,
        writer: Writer<K>,
        config: watcher::Config,
    ) -> BoxStream<'static, K> {
        let events = watcher(self.api::<K>(), config)
            .modify(|object| retain_managers_of_replicas(object.meta_mut()));
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
    fn resources(&self, undecodable: &Arc<UndecodableProxies>) -> (Store<FastllmProxy>, Trigger) {
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
    fn children<K: NamespacedObject>(&self) -> (Store<K>, Trigger) {
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

    /// Autoscalers. Each triggers the resource whose Deployment it scales.
    fn autoscalers(&self) -> (Store<HorizontalPodAutoscaler>, Trigger) {
        let (store, writer) = reflector::store::<HorizontalPodAutoscaler>();
        let stream = self.watch(writer, watcher::Config::default());
        let stream = stream.filter_map(|autoscaler| {
            let planes = [Component::Control, Component::Gateway];
            let resource = target_of(&autoscaler)
                .and_then(|target| planes.iter().find_map(|plane| plane.resource_name(target)));
            let namespace = autoscaler.namespace().unwrap_or_default();
            let resource = resource.map(|name| Ok(ObjectRef::new(name).within(&namespace)));
            std::future::ready(resource)
        });
        (store, stream.boxed())
    }

    /// Metadata of Secrets. Each triggers the resources that reference it.
    fn secrets(&self, proxies: Store<FastllmProxy>) -> (Store<PartialObjectMeta<Secret>>, Trigger) {
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
