//! Schemas of embedded Kubernetes types, shortened to keep the CRD and the output
//! of `kubectl explain` readable.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Pattern of a quantity in the Kubernetes API.
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
            "limits": quantities("Maximum amount that a pod may use, by resource name."),
            "requests": quantities("Amount that the scheduler reserves for a pod, by resource name."),
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
