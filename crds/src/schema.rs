//! Schemas of embedded Kubernetes types, written out so that the definition
//! stays short and `kubectl explain` stays readable.

use schemars::{Schema, SchemaGenerator, json_schema};

/// What Kubernetes accepts as a quantity, as in its own definitions.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

pub(crate) fn resources(_: &mut SchemaGenerator) -> Schema {
    let quantities = |description: &str| {
        json_schema!({
            "type": "object",
            "description": description,
            "additionalProperties": {
                "pattern": QUANTITY,
                "x-kubernetes-int-or-string": true,
            },
        })
    };
    json_schema!({
        "type": "object",
        "properties": {
            "limits": quantities("The most that a pod may use, by resource name."),
            "requests": quantities("What the scheduler sets aside for a pod, by resource name."),
        },
    })
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
                    "description": "When the status of the condition last changed.",
                },
                "message": {
                    "type": "string",
                    "maxLength": 32768,
                    "description": "What a person should know about it.",
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "The generation of the resource that this condition speaks of.",
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Why, as one stable word.",
                },
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "True, False or Unknown.",
                },
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                    "description": "What the condition is about.",
                },
            },
        },
    })
}
