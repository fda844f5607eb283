//! Schemas of embedded Kubernetes types, shortened to keep the CRD and the output
//! of `kubectl explain` readable.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::messages;

/// Maximum length of a string in the schema, which bounds the cost of the rules.
/// The rules themselves have smaller limits: a string that exceeds the limit of the
/// schema prevents the API server from evaluating any rule.
pub(crate) const MAX_STRING: u32 = 4096;

/// Rule for image references: an optional registry, a path, and a tag or digest.
pub(crate) const IMAGE: &str = "self.find('^[^@]*').size() <= 255 && self.matches(r'^\
    (([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?([.][a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)+(:[0-9]+)?|\
    [a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?:[0-9]+|\
    \\[[0-9a-fA-F:]+\\](:[0-9]+)?)/)?\
    [a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)*\
    (:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@sha(256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128}))?$')";

/// Rule for the names of resources.
const RESOURCE_NAMES: &str = "self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || \
    (k.size() <= 253 && !k.contains('kubernetes.io/') && \
    k.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/\
    [A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')))";

/// Rule for amounts.
const AMOUNTS: &str = "self.all(k, isQuantity(string(self[k])) && \
    quantity(string(self[k])).compareTo(quantity('0')) >= 0)";

/// Rule for amounts of extended resources, whose names contain a slash.
const WHOLE_NUMBERS: &str = "self.all(k, !k.contains('/') || !isQuantity(string(self[k])) || \
    quantity(string(self[k])).isInteger())";

/// Rule for requests that have a limit.
const WITHIN_LIMITS: &str = "!has(self.requests) || !has(self.limits) || \
    self.requests.all(k, !(k in self.limits) || !isQuantity(string(self.requests[k])) || \
    !isQuantity(string(self.limits[k])) || \
    quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)";

/// Rule for requests of extended resources.
const EXTENDED_LIMITS: &str = "!has(self.requests) || self.requests.all(k, !k.contains('/') || \
    (has(self.limits) && k in self.limits && \
    string(self.requests[k]) == string(self.limits[k])))";

pub(crate) fn resources(_: &mut SchemaGenerator) -> Schema {
    let quantities = |description: &str| {
        json_schema!({
            "type": "object",
            "description": description,
            "maxProperties": 32,
            "additionalProperties": {
                "maxLength": 64,
                "x-kubernetes-int-or-string": true,
            },
            "x-kubernetes-validations": [
                {"rule": RESOURCE_NAMES, "message": messages::RESOURCE_NAMES},
                {"rule": AMOUNTS, "message": messages::AMOUNTS},
                {"rule": WHOLE_NUMBERS, "message": messages::WHOLE_NUMBERS},
            ],
        })
    };
    json_schema!({
        "type": "object",
        "properties": {
            "limits": quantities("Maximum amount that a pod may use, by resource name."),
            "requests": quantities("Amount that the scheduler reserves for a pod, by resource name."),
        },
        "x-kubernetes-validations": [
            {"rule": WITHIN_LIMITS, "message": messages::WITHIN_LIMITS},
            {"rule": EXTENDED_LIMITS, "message": messages::EXTENDED_LIMITS},
        ],
    })
}

/// A schema that restricts only the type.
pub(crate) fn of_type(name: &str) -> JSONSchemaProps {
    JSONSchemaProps {
        type_: Some(name.to_owned()),
        ..JSONSchemaProps::default()
    }
}

/// The schema of an object with these fields.
pub(crate) fn properties<const N: usize>(fields: [(&str, JSONSchemaProps); N]) -> JSONSchemaProps {
    let fields = fields.map(|(name, schema)| (name.to_owned(), schema));
    JSONSchemaProps {
        properties: Some(BTreeMap::from(fields)),
        ..of_type("object")
    }
}

pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "Time of the last change of the status.",
                },
                "message": {
                    "type": "string",
                    "maxLength": 32768,
                    "description": "Human-readable details.",
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "Generation of the resource that the condition is based on.",
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Reason of the status, a CamelCase identifier.",
                },
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Status of the condition: True, False or Unknown.",
                },
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                    "description": "Type of the condition.",
                },
            },
        },
    })
}
