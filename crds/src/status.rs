//! What the operator says about a `FastllmProxy`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator saw and did.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct FastllmProxyStatus {
    /// One word for people. Programs read the conditions, of which this is a function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Ready gateway pods of those asked for, as `ready/desired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_replicas: Option<String>,

    /// Whether the control plane is rolled out and ready.
    #[serde(default)]
    pub control_ready: bool,

    /// The image that ready gateway pods run; while two run side by side, both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_image: Option<String>,

    /// Whether the first login was created. Never reset.
    #[serde(default)]
    pub bootstrapped: bool,

    /// Keyed hash of the Secret values that the control plane's pods were started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,

    /// Number of gateway pods, for the scale subresource.
    #[serde(default)]
    pub replicas: i32,

    /// Label selector of the gateway pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// The generation that the last pass looked at; -1 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions, one of each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl FastllmProxyStatus {
    /// The condition of a type, if there is one.
    #[must_use]
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == kind.as_str())
    }

    /// Whether the condition of a type is True.
    #[must_use]
    pub fn is_true(&self, kind: ConditionType) -> bool {
        self.condition(kind).is_some_and(|c| c.status == "True")
    }
}

/// One word for people.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Phase {
    /// Not serving yet.
    Pending,
    /// A new version is being rolled out.
    Upgrading,
    /// The first login is being created.
    Bootstrapping,
    /// Serving, or meant to be, and something is wrong.
    Degraded,
    /// Everything that was asked for is there.
    Ready,
}

/// Writes an enum whose variants are words of the API.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every word.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word as it stands in the API.
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

words! {
    /// The types of the conditions; every one is always present.
    ConditionType {
        /// All that was asked for is there.
        Ready,
        /// The operator is moving towards the specification.
        Reconciling,
        /// It cannot move without help.
        Stalled,
        /// Some gateway pod is ready to serve.
        Available,
        /// Every Secret that is referenced was found and is usable.
        SecretsResolved,
        /// A new version is being rolled out.
        Upgrading,
        /// The first login exists.
        Bootstrapped,
        /// The gateway serves at least one model.
        ModelsServed,
        /// The operator was asked to change nothing.
        Paused,
    }
}

words! {
    /// The reasons that conditions and events give.
    Reason {
        /// A referenced Secret does not exist.
        SecretNotFound,
        /// A referenced Secret has no such key, or it is empty.
        KeyNotFound,
        /// A value has the wrong form.
        InvalidValue,
        /// A read failed; nothing is known.
        ReadFailed,
        /// The operator may not read it.
        Forbidden,
        /// The content of the encryption key changed under a running control plane.
        EncryptionKeyChanged,
        /// A node cannot pull the image.
        ImagePullFailed,
        /// A rollout made no progress for too long.
        ProgressDeadlineExceeded,
        /// An object of that name belongs to somebody else.
        NotOwned,
        /// The API server refused an object.
        ApplyRejected,
        /// The image is older than the database's schema allows.
        DowngradeUnsafe,
        /// The installed definition is older than the operator.
        SchemaOutdated,
        /// The control plane is being rolled out.
        RollingControlPlane,
        /// The gateway is being rolled out.
        RollingGateway,
        /// The proxy token is being replaced.
        RotatingToken,
        /// The first login is being created.
        Bootstrapping,
        /// The resource is paused.
        Paused,
        /// The gateway has no model to serve.
        NoModels,
        /// Every pod that was asked for is ready.
        AllReplicasReady,
        /// Every Secret was found.
        Resolved,
        /// Nothing is left to do.
        Complete,
        /// Models are being served.
        Served,
    }
}
