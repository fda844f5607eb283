//! The status of a `FastllmProxy`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observed state of the deployment.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct FastllmProxyStatus {
    /// Summary of the conditions for people. Programs should read the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Number of ready and desired gateway pods, as `ready/desired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_replicas: Option<String>,

    /// Whether the rollout of the control plane is complete.
    #[serde(default)]
    pub control_ready: bool,

    /// Image of the ready gateway pods; two images during a rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_image: Option<String>,

    /// Whether the bootstrap admin was created. Never reset.
    #[serde(default)]
    pub bootstrapped: bool,

    /// Keyed hash of the Secret values that the control plane's pods use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,

    /// Keyed hash of the encryption key that the control plane runs with. Another key is
    /// rejected. Kept when the Deployment is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_key_hash: Option<String>,

    /// Number of gateway pods, for the scale subresource.
    #[serde(default)]
    pub replicas: i32,

    /// Label selector of the gateway pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// Generation that was reconciled last; -1 before the first reconciliation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl FastllmProxyStatus {
    /// Returns the condition of a type.
    #[must_use]
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == kind.as_str())
    }

    /// The status without conditions of other controllers.
    #[must_use]
    pub fn without_foreign_conditions(mut self) -> Self {
        let ours = |name: &str| ConditionType::ALL.iter().any(|kind| kind.as_str() == name);
        self.conditions.retain(|condition| ours(&condition.type_));
        self
    }

    /// Whether a condition is `True`.
    #[must_use]
    pub fn is_true(&self, kind: ConditionType) -> bool {
        self.condition(kind).is_some_and(|c| c.status == "True")
    }
}

/// Summary of the conditions.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Phase {
    /// Not serving yet.
    Pending,
    /// A new version is being rolled out.
    Upgrading,
    /// The bootstrap admin is being created.
    Bootstrapping,
    /// A problem affects the deployment.
    Degraded,
    /// All desired pods are ready.
    Ready,
}

/// Defines an enum whose variants are identifiers of the API.
macro_rules! identifiers {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The identifier in the API.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

identifiers! {
    /// Types of conditions. Each type is always present.
    ConditionType {
        /// All desired pods are ready.
        Ready,
        /// The operator works towards the specification.
        Reconciling,
        /// The operator cannot proceed without a change by the user.
        Stalled,
        /// At least one ready gateway pod is an endpoint of the gateway's Service.
        Available,
        /// Every required Secret value exists and is valid.
        SecretsResolved,
        /// A new version is being rolled out.
        Upgrading,
        /// The bootstrap admin exists.
        Bootstrapped,
        /// The gateway serves at least one model.
        ModelsServed,
        /// Reconciliation is paused.
        Paused,
    }
}

identifiers! {
    /// Reasons of conditions and events.
    Reason {
        /// A referenced Secret does not exist.
        SecretNotFound,
        /// The key of a referenced Secret does not exist or is empty.
        KeyNotFound,
        /// A value is invalid.
        InvalidValue,
        /// A read failed.
        ReadFailed,
        /// The operator lacks the permission to read an object.
        Forbidden,
        /// The encryption key of an existing control plane changed.
        EncryptionKeyChanged,
        /// A node cannot pull the image.
        ImagePullFailed,
        /// A container of a new pod cannot be created, as with a missing `ConfigMap`.
        CreateContainerError,
        /// A container of a new pod exits repeatedly.
        CrashLoopBackOff,
        /// A container of a new pod exceeds its memory limit repeatedly.
        OOMKilled,
        /// No node is suitable for a new pod.
        Unschedulable,
        /// New pods cannot be created, as when a quota is exceeded.
        ReplicaFailure,
        /// The control plane cannot use its database.
        DatabaseUnavailable,
        /// A rollout exceeded its progress deadline.
        ProgressDeadlineExceeded,
        /// An object with the same name has another owner.
        NotOwned,
        /// The API server rejected an object, or a write failed.
        ApplyRejected,
        /// The image is incompatible with the newer database schema.
        DowngradeUnsafe,
        /// The installed CRD is older than the operator.
        SchemaOutdated,
        /// The control plane is being rolled out.
        RollingControlPlane,
        /// The gateway is being rolled out.
        RollingGateway,
        /// The proxy token is being replaced.
        RotatingToken,
        /// The bootstrap admin is being created.
        Bootstrapping,
        /// The resource is paused.
        Paused,
        /// The gateway's Service has no ready endpoints, although pods are ready.
        NoEndpoints,
        /// The gateway serves no models.
        NoModels,
        /// All desired pods are ready.
        AllReplicasReady,
        /// Every required Secret value exists and is valid.
        Resolved,
        /// Nothing is left to do.
        Complete,
        /// An object that something else changed was restored. Only of Events.
        Restored,
        /// The gateway serves at least one model.
        Served,
    }
}
