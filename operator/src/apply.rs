//! Execution of a plan.

use std::sync::Arc;

use fastllm_crds::{FastllmProxy, FastllmProxyStatus, Reason};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, PartialObjectMeta, Patch, PatchParams, Preconditions};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use crate::build::Object;
use crate::error::{CallError, call};
use crate::metrics::Metrics;
use crate::names::{Component, FIELD_MANAGER, Ownership, ownership};
use crate::object::NamespacedObject;
use crate::observe::{Caches, Children, Observed};
use crate::plan::{Plan, Precondition, Step};
use crate::problem::{Problem, ProblemScope};
use crate::stored::UndecodableProxy;

/// A step that failed.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The API server rejected the object, or the object has another owner. A
    /// retry does not help.
    #[error("{0}")]
    Rejected(Problem),
    /// The call failed and may succeed when it is retried.
    #[error("cannot write {kind} {name:?}")]
    Call {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// The failed call.
        source: CallError,
    },
    /// The object is being deleted.
    #[error("{kind} {name:?} is being deleted")]
    Terminating {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
    },
    /// The name is still taken by an object of a deleted resource.
    #[error("{kind} {name:?} of a deleted resource with the same name still exists")]
    Orphan {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
    },
}

/// The cluster that steps are executed on.
pub trait Cluster: Send + Sync {
    /// Applies an object and returns its new state.
    fn apply(
        &self,
        proxy: &FastllmProxy,
        object: &Object,
        precondition: &Precondition,
    ) -> impl Future<Output = Result<Object, ApplyError>> + Send;

    /// Deletes the Job with this name and UID.
    fn delete_job(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send;
}

/// The state of the cluster after a plan was executed.
///
/// Invariant: only [`execute`] creates one, so a status describes only objects
/// that were applied.
#[derive(Debug)]
pub struct Applied {
    children: Children,
    done: Vec<Step>,
    failure: Option<ApplyError>,
}

impl Applied {
    /// The objects in their current state.
    #[must_use]
    pub fn children(&self) -> &Children {
        &self.children
    }

    /// The steps that succeeded.
    #[must_use]
    pub fn done(&self) -> &[Step] {
        &self.done
    }

    /// The error of the step that failed, if any.
    #[must_use]
    pub fn failure(&self) -> Option<&ApplyError> {
        self.failure.as_ref()
    }
}

/// Executes the steps of a plan in order and stops at the first failure.
pub async fn execute<C: Cluster>(
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
                reason: _,
            } => cluster
                .apply(proxy, object, precondition)
                .await
                .map(|object| set_child(&mut applied.children, object)),
            Step::DeleteJob {
                name,
                uid,
                reason: _,
            } => {
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

/// Replaces one of the children.
pub(crate) fn set_child(children: &mut Children, object: Object) {
    let is_gateway = object.component() == Some(Component::Gateway);
    match (object, is_gateway) {
        (Object::ServiceAccount(o), true) => children.gateway_account = Some(*o),
        (Object::ServiceAccount(o), false) => children.control_account = Some(*o),
        (Object::Service(o), true) => children.gateway_service = Some(*o),
        (Object::Service(o), false) => children.control_service = Some(*o),
        (Object::Deployment(o), true) => children.gateway = Some(*o),
        (Object::Deployment(o), false) => children.control = Some(*o),
        (Object::Job(o), _) => children.bootstrap = Some(*o),
    }
}

/// The API server, written to by server-side apply.
#[derive(Clone)]
pub struct ApiServer {
    client: Client,
    caches: Arc<Caches>,
    metrics: Arc<Metrics>,
}

impl ApiServer {
    /// Creates a writer that records its writes in the caches.
    #[must_use]
    pub fn new(client: Client, caches: Arc<Caches>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            caches,
            metrics,
        }
    }

    async fn apply_as<K: NamespacedObject>(
        &self,
        proxy: &FastllmProxy,
        object: &Object,
        precondition: &Precondition,
    ) -> Result<K, ApplyError> {
        let api: Api<K> =
            Api::namespaced(self.client.clone(), &proxy.namespace().unwrap_or_default());
        let mut body = object.to_json();
        let uid = match precondition {
            Precondition::Uid(uid) => Some(uid.clone()),
            Precondition::Absent => uid_of_uncached(&api, proxy, object).await?,
        };
        body["metadata"]["uid"] = Value::from(uid);
        self.metrics.record_write(object.kind(), "patch");
        let params = PatchParams::apply(FIELD_MANAGER).force();
        call(api.patch(object.name(), &params, &Patch::Apply(&body)))
            .await
            .map_err(|error| write_error(object.kind(), object.name(), error))
    }

    /// Replaces the status of a resource.
    ///
    /// # Errors
    /// If the call fails; the next reconciliation tries again.
    pub async fn write_status(
        &self,
        proxy: &FastllmProxy,
        status: &FastllmProxyStatus,
    ) -> Result<(), CallError> {
        let written = self.patch_status(&proxy.metadata, status).await?;
        self.caches.proxies.record_write(written);
        Ok(())
    }

    /// Replaces the status of a resource that does not decode.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn write_undecodable_status(
        &self,
        proxy: &UndecodableProxy,
        status: &FastllmProxyStatus,
    ) -> Result<(), CallError> {
        let written = self.patch_status::<PartialObjectMeta<FastllmProxy>>(&proxy.metadata, status);
        written.await.map(drop)
    }

    async fn patch_status<K: NamespacedObject>(
        &self,
        meta: &ObjectMeta,
        status: &FastllmProxyStatus,
    ) -> Result<K, CallError> {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        // The UID prevents that a new resource of the same name gets this status.
        let body = json!({
            "apiVersion": FastllmProxy::api_version(&()),
            "kind": FastllmProxy::kind(&()),
            "metadata": { "name": name, "uid": meta.uid },
            "status": status,
        });
        self.metrics.record_write("FastllmProxy/status", "patch");
        let params = PatchParams::apply(FIELD_MANAGER).force();
        call(api.patch_status(name, &params, &Patch::Apply(&body))).await
    }
}

/// Checks whether an object of the name exists that may not be written. The caches
/// do not show objects without the operator's labels. Returns the UID of an object
/// that may be written.
async fn uid_of_uncached<K>(
    api: &Api<K>,
    proxy: &FastllmProxy,
    object: &Object,
) -> Result<Option<String>, ApplyError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let (kind, name) = (object.kind(), object.name());
    let found = call(api.get_metadata_opt(name))
        .await
        .map_err(|source| call_error(kind, name, source))?;
    let Some(found) = found else {
        return Ok(None);
    };
    let name = name.to_owned();
    match ownership(proxy, &found.metadata) {
        Ownership::Ours | Ownership::Adoptable => Ok(found.metadata.uid),
        Ownership::Foreign => Err(ApplyError::Rejected(Problem::not_owned(
            kind,
            &found.metadata,
        ))),
        Ownership::Terminating => Err(ApplyError::Terminating { kind, name }),
        Ownership::Orphan => Err(ApplyError::Orphan { kind, name }),
    }
}

/// Classifies the error of a write by whether a retry can help.
fn write_error(kind: &'static str, name: &str, error: CallError) -> ApplyError {
    match error {
        CallError::Api {
            code: 400 | 403 | 422,
            ..
        } => ApplyError::Rejected(Problem::new(
            ProblemScope::Objects,
            Reason::ApplyRejected,
            format!("{kind} {name:?}: {error}"),
        )),
        _ => call_error(kind, name, error),
    }
}

fn call_error(kind: &'static str, name: &str, source: CallError) -> ApplyError {
    ApplyError::Call {
        kind,
        name: name.to_owned(),
        source,
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
                self.caches.accounts.record_apply(written.clone());
                Object::ServiceAccount(Box::new(written))
            }
            Object::Service(_) => {
                let written: Service = self.apply_as(proxy, object, precondition).await?;
                self.caches.services.record_apply(written.clone());
                Object::Service(Box::new(written))
            }
            Object::Deployment(_) => {
                let written: Deployment = self.apply_as(proxy, object, precondition).await?;
                self.caches.deployments.record_apply(written.clone());
                Object::Deployment(Box::new(written))
            }
            Object::Job(_) => {
                let written: Job = self.apply_as(proxy, object, precondition).await?;
                self.caches.jobs.record_write(written.clone());
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
        self.metrics.record_write("Job", "delete");
        match call(api.delete(name, &params)).await {
            Ok(_) => {}
            Err(error) if error.is(404) || error.is(409) => {}
            Err(error) => return Err(write_error("Job", name, error)),
        }
        self.caches.jobs.forget(namespace, name);
        Ok(())
    }
}
