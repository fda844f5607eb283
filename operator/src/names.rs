//! Names, labels, annotations and ports of the objects of a resource.

use std::collections::BTreeMap;
use std::fmt;

use fastllm_crds::FastllmProxy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource as _, ResourceExt as _};

/// Field manager of every write.
pub const FIELD_MANAGER: &str = "fastllm-operator";
/// Label of all objects that this operator creates.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label with the name of the resource.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// Label with the component of the deployment.
pub const COMPONENT: &str = "app.kubernetes.io/component";
const NAME: &str = "app.kubernetes.io/name";
const PRODUCT: &str = "fastllm-proxy";

/// On pod templates: keyed hash of the Secret values that the pod reads.
pub const CONFIG_HASH: &str = "fastllm.io/config-hash";
/// On pod templates: hash of the rest of the template. It identifies the template of a pod.
pub const TEMPLATE_HASH: &str = "fastllm.io/template-hash";
/// On objects: hash of the applied manifest, which reveals removed fields.
pub const APPLIED_HASH: &str = "fastllm.io/applied-hash";
/// On Deployments: keyed hash of each Secret value, which reveals the changed one.
pub const INPUT_HASHES: &str = "fastllm.io/input-hashes";
/// On Deployments: the reason of the last rollout.
pub const ROLLOUT_REASON: &str = "fastllm.io/roll-reason";
/// On a resource: `"true"` pauses reconciliation.
pub const PAUSE: &str = "fastllm.io/pause";
/// On a resource and on pod templates: a new value restarts the pods.
pub const RESTART_AT: &str = "fastllm.io/restart-at";
/// On the control plane's pod template: a new value restarts pods that exited for want of
/// the encryption key.
pub const KEY_RESTORED: &str = "fastllm.io/encryption-key-restored";
/// On an object without a controller: `"true"` lets the resource of its name own it.
pub const ADOPT: &str = "fastllm.io/adopt";

/// Port of the admin API and of `/snapshot`.
pub const ADMIN_PORT: u16 = 4001;
/// Port of the API that clients call.
pub const PUBLIC_PORT: u16 = 4000;
/// Port of the gateway's probes, metrics and the detailed `/health`.
pub const STATUS_PORT: u16 = 4002;

/// A component of a deployment.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Component {
    /// The control plane.
    Control,
    /// The gateway.
    Gateway,
    /// The Job that creates the bootstrap admin.
    Bootstrap,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control plane",
            Self::Gateway => "gateway",
            Self::Bootstrap => "bootstrap admin",
        })
    }
}

impl Component {
    /// Suffix of the names of its objects.
    fn suffix(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Gateway => "proxy",
            Self::Bootstrap => "bootstrap",
        }
    }

    /// Name of its container. It identifies the container among injected sidecars.
    #[must_use]
    pub fn container(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Gateway => "gateway",
            Self::Bootstrap => "bootstrap",
        }
    }

    /// Name of its objects for a resource with this name.
    #[must_use]
    pub fn object_name(self, resource: &str) -> String {
        format!("{resource}-{}", self.suffix())
    }

    /// Name of the resource whose object of this component has this name.
    #[must_use]
    pub fn resource_name(self, object: &str) -> Option<&str> {
        object.strip_suffix(self.suffix())?.strip_suffix('-')
    }

    /// The component with this label value.
    #[must_use]
    pub fn from_label(value: &str) -> Option<Self> {
        [Self::Control, Self::Gateway, Self::Bootstrap]
            .into_iter()
            .find(|c| c.suffix() == value)
    }
}

/// Labels that select the pods of a component. They are immutable.
#[must_use]
pub fn selector(resource: &str, component: Component) -> BTreeMap<String, String> {
    BTreeMap::from([
        (NAME.to_owned(), PRODUCT.to_owned()),
        (INSTANCE.to_owned(), resource.to_owned()),
        (COMPONENT.to_owned(), component.suffix().to_owned()),
    ])
}

/// Labels of the objects and pods of a component.
#[must_use]
pub fn labels(resource: &str, component: Component) -> BTreeMap<String, String> {
    let mut labels = selector(resource, component);
    labels.insert(MANAGED_BY.to_owned(), FIELD_MANAGER.to_owned());
    labels
}

/// Metadata of an object of a component. The resource owns the object.
#[must_use]
pub fn metadata(proxy: &FastllmProxy, component: Component) -> ObjectMeta {
    let name = proxy.name_any();
    ObjectMeta {
        name: Some(component.object_name(&name)),
        namespace: proxy.namespace(),
        labels: Some(labels(&name, component)),
        owner_references: Some(vec![owner(proxy)]),
        ..ObjectMeta::default()
    }
}

/// The owner reference, by which the garbage collector finds the children.
/// `blockOwnerDeletion` is false: true requires permission to update finalizers.
fn owner(proxy: &FastllmProxy) -> OwnerReference {
    OwnerReference {
        api_version: FastllmProxy::api_version(&()).into_owned(),
        kind: FastllmProxy::kind(&()).into_owned(),
        name: proxy.name_any(),
        uid: proxy.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }
}

/// An object in the resource's namespace.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// The kind.
    pub kind: &'static str,
    /// The name.
    pub name: String,
}

/// Sets an annotation.
pub(crate) fn annotate(meta: &mut ObjectMeta, key: &str, value: String) {
    meta.annotations
        .get_or_insert_default()
        .insert(key.to_owned(), value);
}

/// The value of an annotation.
#[must_use]
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The owner of an object, relative to a resource.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ownership {
    /// The resource.
    Ours,
    /// A deleted resource with the same name. The garbage collector is about to
    /// delete the object.
    Orphan,
    /// The resource, but the object is being deleted.
    Terminating,
    /// Nothing, but the resource may become the owner.
    Adoptable,
    /// Anything else.
    Foreign,
}

/// Whether an annotation is `true` or `false`, in any case.
///
/// # Errors
/// Another value.
pub fn switch<'a>(meta: &'a ObjectMeta, key: &str) -> Result<bool, &'a str> {
    match annotation(meta, key) {
        None => Ok(false),
        Some(value) if value.eq_ignore_ascii_case("true") => Ok(true),
        Some(value) if value.eq_ignore_ascii_case("false") => Ok(false),
        Some(value) => Err(value),
    }
}

/// The owner that controls an object.
#[must_use]
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// The owner of an object. An object without a controller that is being deleted
/// counts as an orphan, since its name becomes free.
#[must_use]
pub fn ownership(proxy: &FastllmProxy, meta: &ObjectMeta) -> Ownership {
    let own = owner(proxy);
    let deleted = meta.deletion_timestamp.is_some();
    match controller(meta) {
        Some(o) if o.uid == own.uid && deleted => Ownership::Terminating,
        Some(o) if o.uid == own.uid => Ownership::Ours,
        Some(o) if o.kind == own.kind && o.name == own.name && o.api_version == own.api_version => {
            Ownership::Orphan
        }
        None if switch(meta, ADOPT) == Ok(true) && deleted => Ownership::Orphan,
        None if switch(meta, ADOPT) == Ok(true) => Ownership::Adoptable,
        _ => Ownership::Foreign,
    }
}
