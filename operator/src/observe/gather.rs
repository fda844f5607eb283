//! The only place that reads the state of the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use fastllm_crds::FastllmProxy;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::Serialize;

use super::{
    Children, MutationCache, Observed, PlaneProbe, PodReports, PodView, ReadFailure, ReadOutcome,
};
use crate::error::{CallError, call};
use crate::names::{Component, INSTANCE, ObjectKey};
use crate::scaling::autoscaler_of;
use crate::secrets::{SecretData, SecretValue, required_references};

/// Label of an `EndpointSlice` with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The watch caches.
pub struct Caches {
    /// The resources.
    pub proxies: MutationCache<FastllmProxy>,
    /// Deployments with the operator's label.
    pub deployments: MutationCache<Deployment>,
    /// Services with the operator's label.
    pub services: MutationCache<Service>,
    /// `ServiceAccounts` with the operator's label.
    pub accounts: MutationCache<ServiceAccount>,
    /// Jobs with the operator's label.
    pub jobs: MutationCache<Job>,
    /// Pods with the operator's label.
    pub pods: Store<Pod>,
    /// Endpoints of Services with the operator's label, which Kubernetes copies.
    pub endpoints: Store<EndpointSlice>,
    /// All autoscalers.
    pub autoscalers: Store<HorizontalPodAutoscaler>,
    /// Metadata of all Secrets, and the data of those that were read by name.
    pub secrets: SecretReader,
}

impl Caches {
    fn children(&self, namespace: &str, name: &str) -> Children {
        let control = Component::Control.object_name(name);
        let gateway = Component::Gateway.object_name(name);
        let bootstrap = Component::Bootstrap.object_name(name);
        Children {
            control_account: get(&self.accounts, namespace, &control),
            gateway_account: get(&self.accounts, namespace, &gateway),
            control_service: get(&self.services, namespace, &control),
            gateway_service: get(&self.services, namespace, &gateway),
            control: get(&self.deployments, namespace, &control),
            gateway: get(&self.deployments, namespace, &gateway),
            bootstrap: get(&self.jobs, namespace, &bootstrap),
        }
    }

    fn unmodified(&self, children: &Children) -> BTreeSet<ObjectKey> {
        [
            unmodified_key(&self.accounts, children.control_account.as_ref()),
            unmodified_key(&self.accounts, children.gateway_account.as_ref()),
            unmodified_key(&self.services, children.control_service.as_ref()),
            unmodified_key(&self.services, children.gateway_service.as_ref()),
            unmodified_key(&self.deployments, children.control.as_ref()),
            unmodified_key(&self.deployments, children.gateway.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Reads what the pods of a resource report about themselves.
    pub async fn reports<P: PlaneProbe>(&self, proxy: &FastllmProxy, probe: &P) -> PodReports {
        let namespace = proxy.namespace().unwrap_or_default();
        reports(&self.pods(&namespace, &proxy.name_any()), probe).await
    }

    fn autoscalers(&self, namespace: &str, name: &str) -> BTreeMap<Component, String> {
        let planes = [Component::Control, Component::Gateway].into_iter();
        let found = planes.filter_map(|component| {
            let deployment = component.object_name(name);
            let autoscaler = autoscaler_of(&self.autoscalers, namespace, &deployment)?;
            Some((component, autoscaler))
        });
        found.collect()
    }

    /// Number of ready endpoints of the gateway's Service.
    fn endpoints(&self, namespace: &str, name: &str) -> usize {
        let service = Component::Gateway.object_name(name);
        let slices = self.endpoints.state_filter(|slice| {
            slice.metadata.namespace.as_deref() == Some(namespace)
                && slice.labels().get(SERVICE_NAME) == Some(&service)
        });
        let all = slices
            .iter()
            .flat_map(|slice| slice.endpoints.iter().flatten());
        // A condition that is not set means ready.
        all.filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|c| c.ready).unwrap_or(true)
        })
        .count()
    }

    fn pods(&self, namespace: &str, name: &str) -> Vec<PodView> {
        let ours = self.pods.state_filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.labels().get(INSTANCE).map(String::as_str) == Some(name)
        });
        let now = Timestamp::now();
        let mut pods: Vec<_> = ours
            .iter()
            .filter_map(|pod| PodView::of(pod, name, now))
            .collect();
        pods.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        pods
    }
}

/// Reads the models of the first gateway pod that serves requests, and the database's
/// problem from the first pod of the control plane that is not ready.
async fn reports<P: PlaneProbe>(pods: &[PodView], probe: &P) -> PodReports {
    let address = |component, ready| {
        let mut found = pods
            .iter()
            .filter(|pod| pod.component == component && pod.ready == ready && !pod.terminating);
        found.find_map(|pod| pod.ip.as_deref())
    };
    let mut reports = PodReports::default();
    if let Some(ip) = address(Component::Gateway, true) {
        reports.models = probe.models(ip).await;
    }
    if let Some(ip) = address(Component::Control, false) {
        reports.database_problem = probe.database_problem(ip).await;
    }
    reports
}

fn get<K>(cache: &MutationCache<K>, namespace: &str, name: &str) -> Option<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + 'static,
{
    cache.get(namespace, name).map(Arc::unwrap_or_clone)
}

fn unmodified_key<K>(cache: &MutationCache<K>, child: Option<&K>) -> Option<ObjectKey>
where
    K: Resource<DynamicType = ()> + k8s_openapi::Resource + Clone + Debug + Serialize + 'static,
{
    child
        .filter(|child| cache.is_unmodified(child))
        .map(|child| ObjectKey {
            kind: K::KIND,
            name: child.name_any(),
        })
}

/// The data of a Secret and the resource version that it was read at.
struct CachedSecret {
    resource_version: String,
    data: SecretData,
}

/// Reads Secrets by name, and again only after their resource version changed.
pub struct SecretReader {
    client: Client,
    metadata: Store<PartialObjectMeta<Secret>>,
    cached: Mutex<HashMap<ObjectRef<Secret>, CachedSecret>>,
}

impl SecretReader {
    /// Creates a reader from a cache of metadata.
    #[must_use]
    pub fn new(client: Client, metadata: Store<PartialObjectMeta<Secret>>) -> Self {
        Self {
            client,
            metadata,
            cached: Mutex::default(),
        }
    }

    /// The cache of metadata.
    #[must_use]
    pub fn metadata(&self) -> &Store<PartialObjectMeta<Secret>> {
        &self.metadata
    }

    /// The data of a Secret; `None` if the Secret does not exist.
    pub async fn read(&self, namespace: &str, name: &str) -> ReadOutcome<Option<SecretData>> {
        let key = ObjectRef::<Secret>::new(name).within(namespace);
        let version = self.resource_version(&key);
        if let Some(cached) = self.cached.lock().get(&key)
            && version.as_ref() == Some(&cached.resource_version)
        {
            return ReadOutcome::Known(Some(cached.data.clone()));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        match call(api.get_opt(name)).await {
            Ok(found) => ReadOutcome::Known(found.map(|secret| self.insert(key, secret))),
            Err(error) => ReadOutcome::Unknown(read_failure(&error)),
        }
    }

    fn resource_version(&self, key: &ObjectRef<Secret>) -> Option<String> {
        let key = ObjectRef::<PartialObjectMeta<Secret>>::new(&key.name)
            .within(key.namespace.as_deref().unwrap_or_default());
        self.metadata.get(&key)?.resource_version()
    }

    /// Caches the data for as long as the Secret exists.
    fn insert(&self, key: ObjectRef<Secret>, secret: Secret) -> SecretData {
        let resource_version = secret.resource_version().unwrap_or_default();
        let data: SecretData = secret
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(name, value)| (name, SecretValue::new(value.0)))
            .collect();
        let mut cached = self.cached.lock();
        cached.retain(|key, _| self.resource_version(key).is_some());
        cached.insert(
            key,
            CachedSecret {
                resource_version,
                data: data.clone(),
            },
        );
        data
    }
}

fn read_failure(error: &CallError) -> ReadFailure {
    match error {
        CallError::Timeout => ReadFailure::Failed("the API server did not respond in time"),
        CallError::Api {
            code: 401 | 403, ..
        } => ReadFailure::Forbidden,
        CallError::Api { .. } => ReadFailure::Failed("the API server rejected the read"),
        CallError::Transport(_) => ReadFailure::Failed("the API server could not be reached"),
    }
}

/// Reads everything that a plan depends on.
pub async fn gather<P: PlaneProbe>(
    caches: &Caches,
    probe: &P,
    proxy: &FastllmProxy,
    bootstrapped: bool,
) -> Observed {
    let namespace = proxy.namespace().unwrap_or_default();
    let name = proxy.name_any();
    let mut secrets = BTreeMap::new();
    for (_, reference) in required_references(proxy, bootstrapped) {
        if reference.is_valid() && !secrets.contains_key(&reference.name) {
            let read = caches.secrets.read(&namespace, &reference.name).await;
            secrets.insert(reference.name.clone(), read);
        }
    }
    let pods = caches.pods(&namespace, &name);
    let reports = reports(&pods, probe).await;
    let children = caches.children(&namespace, &name);
    Observed {
        unmodified: caches.unmodified(&children),
        children,
        pods,
        autoscalers: caches.autoscalers(&namespace, &name),
        endpoints: caches.endpoints(&namespace, &name),
        secrets,
        reports,
        ..Observed::default()
    }
}
