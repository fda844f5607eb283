//! The one place that reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use fastllm_crds::FastllmProxy;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::Serialize;

use super::{Children, Latest, ModelsProbe, Observed, PodView, Read, ReadFailure};
use crate::error::{CallError, call};
use crate::names::{Component, INSTANCE};
use crate::secrets::{SecretData, SecretValue, needed};

/// The watch caches.
pub struct Caches {
    /// The resources.
    pub proxies: Latest<FastllmProxy>,
    /// Deployments that carry our label.
    pub deployments: Latest<Deployment>,
    /// Services that carry our label.
    pub services: Latest<Service>,
    /// `ServiceAccounts` that carry our label.
    pub accounts: Latest<ServiceAccount>,
    /// Jobs that carry our label.
    pub jobs: Latest<Job>,
    /// Pods that carry our label.
    pub pods: Store<Pod>,
    /// Metadata of every Secret; never data.
    pub secrets: SecretReader,
}

impl Caches {
    fn children(&self, namespace: &str, name: &str) -> Children {
        let control = Component::Control.object_name(name);
        let gateway = Component::Gateway.object_name(name);
        let bootstrap = Component::Bootstrap.object_name(name);
        Children {
            control_account: self.accounts.get(namespace, &control).map(owned),
            gateway_account: self.accounts.get(namespace, &gateway).map(owned),
            control_service: self.services.get(namespace, &control).map(owned),
            gateway_service: self.services.get(namespace, &gateway).map(owned),
            control: self.deployments.get(namespace, &control).map(owned),
            gateway: self.deployments.get(namespace, &gateway).map(owned),
            bootstrap: self.jobs.get(namespace, &bootstrap).map(owned),
        }
    }

    fn as_applied(&self, children: &Children) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        note(
            &self.accounts,
            children.control_account.as_ref(),
            &mut found,
        );
        note(
            &self.accounts,
            children.gateway_account.as_ref(),
            &mut found,
        );
        note(
            &self.services,
            children.control_service.as_ref(),
            &mut found,
        );
        note(
            &self.services,
            children.gateway_service.as_ref(),
            &mut found,
        );
        note(&self.deployments, children.control.as_ref(), &mut found);
        note(&self.deployments, children.gateway.as_ref(), &mut found);
        found
    }

    fn pods(&self, namespace: &str, name: &str) -> Vec<PodView> {
        let ours = self.pods.state_filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.labels().get(INSTANCE).map(String::as_str) == Some(name)
        });
        let mut pods: Vec<_> = ours.iter().filter_map(|pod| PodView::of(pod)).collect();
        pods.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        pods
    }
}

fn note<K>(latest: &Latest<K>, child: Option<&K>, found: &mut BTreeSet<(String, String)>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + 'static,
{
    if let Some(child) = child.filter(|child| latest.is_as_applied(child)) {
        found.insert((K::kind(&()).into_owned(), child.name_any()));
    }
}

fn owned<K: Clone>(object: Arc<K>) -> K {
    Arc::unwrap_or_clone(object)
}

/// Reads Secrets by name, and only when their metadata says that they changed.
pub struct SecretReader {
    client: Client,
    metadata: Store<PartialObjectMeta<Secret>>,
    read: Mutex<HashMap<ObjectRef<Secret>, (String, SecretData)>>,
}

impl SecretReader {
    /// Wraps a cache of metadata.
    #[must_use]
    pub fn new(client: Client, metadata: Store<PartialObjectMeta<Secret>>) -> Self {
        Self {
            client,
            metadata,
            read: Mutex::default(),
        }
    }

    /// The cache of metadata.
    #[must_use]
    pub fn metadata(&self) -> &Store<PartialObjectMeta<Secret>> {
        &self.metadata
    }

    /// One Secret's data; `None` if there is no such Secret.
    pub async fn read(&self, namespace: &str, name: &str) -> Read<Option<SecretData>> {
        let key = ObjectRef::<Secret>::new(name).within(namespace);
        let version = self.version(&key);
        if let Some((seen, data)) = self.read.lock().get(&key)
            && version.as_ref() == Some(seen)
        {
            return Read::Known(Some(data.clone()));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        match call(api.get_opt(name)).await {
            Ok(found) => Read::Known(found.map(|secret| self.remember(key, secret))),
            Err(error) => Read::Unknown(failure(&error)),
        }
    }

    fn version(&self, key: &ObjectRef<Secret>) -> Option<String> {
        let key = ObjectRef::<PartialObjectMeta<Secret>>::new(&key.name)
            .within(key.namespace.as_deref().unwrap_or_default());
        self.metadata.get(&key)?.resource_version()
    }

    /// Keeps what was read for as long as the Secret exists.
    fn remember(&self, key: ObjectRef<Secret>, secret: Secret) -> SecretData {
        let version = secret.resource_version().unwrap_or_default();
        let data: SecretData = secret
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(name, value)| (name, SecretValue::new(value.0)))
            .collect();
        let mut read = self.read.lock();
        read.retain(|key, _| self.version(key).is_some());
        read.insert(key, (version, data.clone()));
        data
    }
}

fn failure(error: &CallError) -> ReadFailure {
    match error {
        CallError::Timeout => ReadFailure::Failed("the API server did not answer in time"),
        CallError::Api {
            code: 401 | 403, ..
        } => ReadFailure::Forbidden,
        CallError::Api { .. } => ReadFailure::Failed("the API server refused the read"),
        CallError::Transport(_) => ReadFailure::Failed("the API server could not be reached"),
    }
}

/// Gathers everything that a decision about a resource is made from.
pub async fn gather<P: ModelsProbe>(
    caches: &Caches,
    probe: &P,
    proxy: &FastllmProxy,
    bootstrapped: bool,
) -> Observed {
    let namespace = proxy.namespace().unwrap_or_default();
    let name = proxy.name_any();
    let mut secrets = BTreeMap::new();
    for (_, reference) in needed(proxy, bootstrapped) {
        if !secrets.contains_key(&reference.name) {
            let read = caches.secrets.read(&namespace, &reference.name).await;
            secrets.insert(reference.name.clone(), read);
        }
    }
    let pods = caches.pods(&namespace, &name);
    let serving = pods.iter().find(|pod| {
        pod.component == Component::Gateway && pod.ready && !pod.terminating && pod.ip.is_some()
    });
    let models = match serving.and_then(|pod| pod.ip.as_deref()) {
        Some(ip) => probe.models(ip).await,
        None => Observed::default().models,
    };
    let children = caches.children(&namespace, &name);
    Observed {
        as_applied: caches.as_applied(&children),
        children,
        pods,
        secrets,
        models,
    }
}
