//! Carries a plan out.

use std::sync::Arc;

use fastllm_crds::{FastllmProxy, FastllmProxyStatus, Reason};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::build::Object;
use crate::error::{CallError, call};
use crate::metrics::Metrics;
use crate::names::{Component, FIELD_MANAGER, Ownership, ownership};
use crate::observe::{Caches, Children, Observed};
use crate::plan::{About, Plan, Precondition, Problem, Step, not_owned};

/// A step that did not work.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ApplyError {
    /// The API server refuses the object, or it is somebody else's: trying
    /// again does not help.
    Refused(Problem),
    /// It may work the next time.
    Transient(String),
}

/// Whatever steps are carried out on.
pub trait Cluster: Send + Sync {
    /// Applies an object and gives it back as it is now.
    fn apply(
        &self,
        proxy: &FastllmProxy,
        object: &Object,
        precondition: &Precondition,
    ) -> impl Future<Output = Result<Object, ApplyError>> + Send;

    /// Removes the Job with this name and UID.
    fn delete_job(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send;
}

/// What is there after a plan was carried out. Only [`run`] makes one, so a
/// status can only speak of what was applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    children: Children,
    done: Vec<Step>,
    failure: Option<ApplyError>,
}

impl Applied {
    /// The objects as they are now.
    #[must_use]
    pub fn children(&self) -> &Children {
        &self.children
    }

    /// The steps that were carried out.
    #[must_use]
    pub fn done(&self) -> &[Step] {
        &self.done
    }

    /// The step that did not work, if one did not.
    #[must_use]
    pub fn failure(&self) -> Option<&ApplyError> {
        self.failure.as_ref()
    }
}

/// Carries out a plan's steps in their order, up to the first that fails.
pub async fn run<C: Cluster>(
    cluster: &C,
    proxy: &FastllmProxy,
    plan: &Plan,
    observed: &Observed,
) -> Applied {
    let mut applied = Applied {
        children: observed.children.clone().owned_by(proxy),
        done: Vec::new(),
        failure: None,
    };
    let steps = if plan.paused {
        &[][..]
    } else {
        &plan.steps[..]
    };
    for step in steps {
        let outcome = match step {
            Step::Apply {
                object,
                precondition,
                why: _,
            } => cluster
                .apply(proxy, object, precondition)
                .await
                .map(|object| keep(&mut applied.children, object)),
            Step::DeleteJob { name, uid, why: _ } => {
                let namespace = proxy.namespace().unwrap_or_default();
                let deleted = cluster.delete_job(&namespace, name, uid).await;
                deleted.map(|()| applied.children.bootstrap = None)
            }
        };
        match outcome {
            Ok(()) => applied.done.push(step.clone()),
            Err(error) => {
                applied.failure = Some(error);
                break;
            }
        }
    }
    applied
}

fn keep(children: &mut Children, object: Object) {
    let of_gateway = object.component() == Some(Component::Gateway);
    match (object, of_gateway) {
        (Object::ServiceAccount(o), true) => children.gateway_account = Some(*o),
        (Object::ServiceAccount(o), false) => children.control_account = Some(*o),
        (Object::Service(o), true) => children.gateway_service = Some(*o),
        (Object::Service(o), false) => children.control_service = Some(*o),
        (Object::Deployment(o), true) => children.gateway = Some(*o),
        (Object::Deployment(o), false) => children.control = Some(*o),
        (Object::Job(o), _) => children.bootstrap = Some(*o),
    }
}

/// The real cluster, by server-side apply.
#[derive(Clone)]
pub struct ApiServer {
    client: Client,
    caches: Arc<Caches>,
    metrics: Arc<Metrics>,
}

impl ApiServer {
    /// Writes through this client, and tells the caches.
    #[must_use]
    pub fn new(client: Client, caches: Arc<Caches>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            caches,
            metrics,
        }
    }

    async fn apply_as<K>(
        &self,
        proxy: &FastllmProxy,
        object: &Object,
        precondition: &Precondition,
    ) -> Result<K, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Send,
    {
        let api: Api<K> =
            Api::namespaced(self.client.clone(), &proxy.namespace().unwrap_or_default());
        let mut body = object.body();
        match precondition {
            Precondition::Uid(uid) => body["metadata"]["uid"] = Value::from(uid.as_str()),
            Precondition::Absent => absent(&api, proxy, object).await?,
        }
        self.metrics.wrote(object.kind(), "patch");
        let params = PatchParams::apply(FIELD_MANAGER).force();
        call(api.patch(object.name(), &params, &Patch::Apply(&body)))
            .await
            .map_err(|error| refusal(object.kind(), object.name(), &error))
    }

    /// Writes a resource's status, all of it, in one call.
    ///
    /// # Errors
    /// If the API server does not take it; the next pass tries again.
    pub async fn write_status(
        &self,
        proxy: &FastllmProxy,
        status: &FastllmProxyStatus,
    ) -> Result<(), CallError> {
        let api: Api<FastllmProxy> =
            Api::namespaced(self.client.clone(), &proxy.namespace().unwrap_or_default());
        // The UID keeps an old status away from a new resource of the same name.
        let body = json!({
            "apiVersion": FastllmProxy::api_version(&()),
            "kind": FastllmProxy::kind(&()),
            "metadata": { "name": proxy.name_any(), "uid": proxy.uid() },
            "status": status,
        });
        self.metrics.wrote("FastllmProxy/status", "patch");
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written =
            call(api.patch_status(&proxy.name_any(), &params, &Patch::Apply(&body))).await?;
        self.caches.proxies.wrote(written);
        Ok(())
    }
}

/// Looks once more before an object is created: what carries none of our
/// labels is not in the caches.
async fn absent<K>(api: &Api<K>, proxy: &FastllmProxy, object: &Object) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = call(api.get_metadata_opt(object.name()))
        .await
        .map_err(|error| ApplyError::Transient(error.to_string()))?;
    match found.map(|found| ownership(proxy, &found.metadata)) {
        None | Some(Ownership::Ours) => Ok(()),
        Some(Ownership::Foreign) => {
            Err(ApplyError::Refused(not_owned(object.kind(), object.name())))
        }
        Some(Ownership::Leftover) => Err(ApplyError::Transient(format!(
            "{} {:?} of an earlier resource of this name is still being removed",
            object.kind(),
            object.name()
        ))),
    }
}

/// What an error means for the next try.
fn refusal(kind: &str, name: &str, error: &CallError) -> ApplyError {
    let message = format!("{kind} {name:?}: {error}");
    match error {
        CallError::Api {
            code: 400 | 403 | 422,
            ..
        } => ApplyError::Refused(Problem::new(About::Objects, Reason::ApplyRejected, message)),
        _ => ApplyError::Transient(message),
    }
}

impl Cluster for ApiServer {
    async fn apply(
        &self,
        proxy: &FastllmProxy,
        object: &Object,
        precondition: &Precondition,
    ) -> Result<Object, ApplyError> {
        Ok(match object {
            Object::ServiceAccount(_) => {
                let written: ServiceAccount = self.apply_as(proxy, object, precondition).await?;
                self.caches.accounts.applied(written.clone());
                Object::ServiceAccount(Box::new(written))
            }
            Object::Service(_) => {
                let written: Service = self.apply_as(proxy, object, precondition).await?;
                self.caches.services.applied(written.clone());
                Object::Service(Box::new(written))
            }
            Object::Deployment(_) => {
                let written: Deployment = self.apply_as(proxy, object, precondition).await?;
                self.caches.deployments.applied(written.clone());
                Object::Deployment(Box::new(written))
            }
            Object::Job(_) => {
                let written: Job = self.apply_as(proxy, object, precondition).await?;
                self.caches.jobs.wrote(written.clone());
                Object::Job(Box::new(written))
            }
        })
    }

    async fn delete_job(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApplyError> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        });
        self.metrics.wrote("Job", "delete");
        match call(api.delete(name, &params)).await {
            Ok(_) => {}
            Err(error) if error.is(404) || error.is(409) => {}
            Err(error) => return Err(refusal("Job", name, &error)),
        }
        self.caches.jobs.forget(namespace, name);
        Ok(())
    }
}
