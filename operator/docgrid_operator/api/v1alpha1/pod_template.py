"""The pod template of an IndexingWorker: any field of a pod, within limits.

The schema knows what the operator relies on: lists that are merged by name have names. What is in them is checked
when the Deployment is applied; a condition of the IndexingWorker then says what is wrong.
"""

from typing import Annotated, Any

from pydantic import WithJsonSchema

_NAMED: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 253, "description": "Its name."}},
    "x-kubernetes-preserve-unknown-fields": True,
}


def _named(most: int, description: str) -> dict[str, Any]:
    return {"type": "array", "maxItems": most, "items": _NAMED, "description": description}


def _texts(longest: int, description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": longest},
        "description": description,
    }


_METADATA = {
    "type": "object",
    "description": "Labels and annotations of the pods.",
    "properties": {
        "labels": _texts(63, "Labels; the operator's own stay."),
        "annotations": _texts(
            4096, "Annotations. A change rolls the pods, so the version of a Secret fits here."
        ),
    },
}
_SPEC = {
    "type": "object",
    "maxProperties": 64,
    "description": "Any fields of a pod's spec; the worker's container is named worker.",
    "properties": {
        "containers": _named(16, "Containers, merged by name."),
        "initContainers": _named(16, "Init containers, merged by name."),
        "volumes": _named(64, "Volumes, merged by name."),
    },
    "x-kubernetes-preserve-unknown-fields": True,
}

PodTemplate = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "properties": {"metadata": _METADATA, "spec": _SPEC}}),
]
"""What is laid over the operator's own pod template."""
