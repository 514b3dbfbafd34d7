"""Manifests with one mistake each, and what a refusal has to say: the field and the rule.

tests/operator/test_admission.py applies them as a person does.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from support.layers import TESTS

SAMPLES = TESTS.parent / "manifests" / "samples"
POOL: dict[str, Any] = yaml.safe_load((SAMPLES / "small-pool.yaml").read_text())
JOB: dict[str, Any] = {
    "apiVersion": "docgrid.dev/v1alpha1",
    "kind": "IndexingJob",
    "metadata": {"name": "job-42"},
    "spec": {"jobId": 42, "title": "Handbook", "versionNo": 3, "model": "e5 1", "priority": 0},
    "status": {"state": "PENDING", "attempt": 0, "retries": "0/3"},
}

LEFT_OUT = object()
"""In place of a value: the field is not written."""


@dataclass(frozen=True, slots=True)
class Bad:
    """One edit of a good manifest, and what the refusal has to say."""

    edit: str  # path of the field that is written
    value: Any
    named: str  # path of the field that is named
    rule: str
    good: Mapping[str, Any] = field(default_factory=lambda: POOL)

    def __str__(self) -> str:
        return f"{self.edit}={'' if self.value is LEFT_OUT else str(self.value)[:40]}"

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest with the edit."""
        manifest = copy.deepcopy(dict(self.good))
        parts = self.edit.split(".")
        inner = manifest
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
        if self.value is LEFT_OUT:
            del inner[parts[-1]]
        else:
            inner[parts[-1]] = self.value
        return manifest


DURATION = r"should match '^([0-9]{1,6}(\.[0-9]{1,3})?(s|m|h)|[0-9]{1,6}ms)+$'"
POSITIVE = "must be greater than 0 and at most ten years"
BUDGET = "must have one of minAvailable and maxUnavailable, and not both"
NUMBER = "must be a number, 0 or more, or a percentage such as 50%"
QUANTITY = "must be a quantity, 0 or more, such as 500m or 2Gi"
ENDPOINT = "must be host:port, without scheme and path"
ADDRESS = "must be an http:// or https:// address"
TEMPLATE = "spec.podTemplate"

BAD = [
    # Wrong types.
    Bad("spec.replicas", "two", "spec.replicas", "must be of type integer"),
    Bad("spec.replicas", 1.5, "spec.replicas", "must be of type integer"),
    Bad("spec.suspend", "yes", "spec.suspend", "must be of type boolean"),
    Bad("spec.model", "multilingual-e5-small", "spec.model", "must be of type object"),
    Bad("spec.model.version", 1, "spec.model.version", "must be of type string"),
    Bad("spec.lease.duration", 300, "spec.lease.duration", "must be of type duration"),
    Bad("spec.disruptionBudget", {"minAvailable": True}, "minAvailable", "must be of type integer,string"),
    # Fields that are not there, and fields that must be.
    Bad("spec.replica", 2, "spec.replica", "unknown field"),
    Bad("spec.lease.renewal", "1m", "spec.lease.renewal", "unknown field"),
    Bad("spec.parsing.memoryLimit", "1Gi", "spec.parsing.memoryLimit", "unknown field"),
    Bad("spec.autoscaling", {"maxReplicas": 3}, "spec.autoscaling", "unknown field"),
    Bad("spec.resources", {"request": {"cpu": 1}}, "spec.resources.request", "unknown field"),
    Bad("spec", LEFT_OUT, "spec", "Required value"),
    Bad("spec.model", LEFT_OUT, "spec.model", "Required value"),
    Bad("spec.model", {"version": "1"}, "spec.model.name", "Required value"),
    Bad("spec.embedding", LEFT_OUT, "spec.embedding", "Required value"),
    Bad("spec.embedding", {"batchSize": 8}, "spec.embedding.baseUrl", "when provider is openai"),
    Bad("spec.database", {"secretRef": {}}, "spec.database.secretRef.name", "Required value"),
    Bad("spec.storage.endpoint", LEFT_OUT, "spec.storage.endpoint", "Required value"),
    Bad("spec.storage.secretRef", LEFT_OUT, "spec.storage.secretRef", "Required value"),
    Bad(
        "spec.embedding.apiKeySecretRef",
        {"key": "k"},
        "spec.embedding.apiKeySecretRef.name",
        "Required value",
    ),
    # Numbers out of range.
    Bad("spec.replicas", -1, "spec.replicas", "greater than or equal to 0"),
    Bad("spec.replicas", 3_000_000_000, "spec.replicas", "less than or equal to 2147483647"),
    Bad("spec.concurrency", 0, "spec.concurrency", "greater than or equal to 1"),
    Bad("spec.concurrency", 257, "spec.concurrency", "less than or equal to 256"),
    Bad("spec.embedding.concurrency", 0, "spec.embedding.concurrency", "greater than or equal to 1"),
    Bad("spec.embedding.batchSize", 5000, "spec.embedding.batchSize", "less than or equal to 2048"),
    Bad("spec.embedding.maxCodePoints", 0, "spec.embedding.maxCodePoints", "greater than or equal to 1"),
    Bad("spec.parsing.maxFileSize", -5, "spec.parsing.maxFileSize", "greater than or equal to 1"),
    Bad("spec.chunking.size", 0, "spec.chunking.size", "greater than or equal to 1"),
    Bad("spec.chunking.overlap", -1, "spec.chunking.overlap", "greater than or equal to 0"),
    # Durations that are none, and durations out of range.
    Bad("spec.lease.duration", "5 minutes", "spec.lease.duration", DURATION),
    Bad("spec.lease.duration", "five", "spec.lease.duration", "must be of type duration"),
    Bad("spec.lease.duration", "1.5.5s", "spec.lease.duration", DURATION),
    Bad("spec.lease.duration", "99999999h", "spec.lease.duration", DURATION),
    Bad("spec.lease.duration", "999999h", "spec.lease.duration", POSITIVE),
    Bad("spec.lease.duration", "0s", "spec.lease.duration", POSITIVE),
    Bad("spec.lease.renewalInterval", "-5s", "spec.lease.renewalInterval", DURATION),
    Bad("spec.polling.interval", "0s", "spec.polling.interval", POSITIVE),
    Bad("spec.heartbeat.deadThreshold", "0h", "spec.heartbeat.deadThreshold", POSITIVE),
    Bad("spec.embedding.readTimeout", "0ms", "spec.embedding.readTimeout", POSITIVE),
    Bad("spec.shutdownGracePeriod", "-1s", "spec.shutdownGracePeriod", "must be 0s or more"),
    # Two fields that do not go together, written or left at their defaults.
    Bad("spec.lease.duration", "30s", "spec.lease.renewalInterval", "must be less than duration"),
    Bad("spec.lease.renewalInterval", "5m", "spec.lease.renewalInterval", "must be less than duration"),
    Bad("spec.polling.interval", "11s", "spec.polling.interval", "must be at most idleMaxInterval"),
    Bad("spec.heartbeat.interval", "30s", "spec.heartbeat.interval", "must be less than deadThreshold"),
    Bad(
        "spec.heartbeat.deadThreshold", "9999ms", "spec.heartbeat.interval", "must be less than deadThreshold"
    ),
    Bad("spec.chunking.overlap", 1000, "spec.chunking.overlap", "must be less than size"),
    Bad("spec.chunking", {"size": 100}, "spec.chunking.overlap", "its own default is 200"),
    Bad("spec.disruptionBudget", {}, "spec.disruptionBudget", BUDGET),
    Bad("spec.disruptionBudget", {"minAvailable": 1, "maxUnavailable": 1}, "spec.disruptionBudget", BUDGET),
    # Texts, names and quantities.
    Bad("metadata.name", "a" * 51, "metadata.name", "at most 50 characters"),
    Bad("spec.embedding.provider", "ollama", "spec.embedding.provider", 'values: "openai", "builtin"'),
    Bad("spec.embedding.baseUrl", "embeddings:8000", "spec.embedding.baseUrl", ADDRESS),
    Bad("spec.embedding.baseUrl", "", "spec.embedding.baseUrl", ADDRESS),
    Bad("spec.model.name", "", "spec.model.name", "at least 1 chars long"),
    Bad("spec.image", "my image", "spec.image", "without spaces"),
    Bad("spec.storage.endpoint", "http://minio:9000", "spec.storage.endpoint", ENDPOINT),
    Bad("spec.storage.endpoint", "minio:9000/docs", "spec.storage.endpoint", ENDPOINT),
    Bad("spec.database.secretRef.name", "My_Secret", "spec.database.secretRef.name", "the name of a Secret"),
    Bad("spec.database.secretRef.key", "a key", "spec.database.secretRef.key", "must be a key of a Secret"),
    Bad("spec.disruptionBudget", {"minAvailable": "half"}, "spec.disruptionBudget.minAvailable", NUMBER),
    Bad("spec.disruptionBudget", {"maxUnavailable": -1}, "spec.disruptionBudget.maxUnavailable", NUMBER),
    Bad("spec.resources", {"requests": {"memory": "lots"}}, "spec.resources.requests[memory]", QUANTITY),
    Bad("spec.resources", {"limits": {"cpu": -1}}, "spec.resources.limits[cpu]", QUANTITY),
    Bad(
        "spec.resources",
        {"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}},
        "spec.resources.requests",
        "must each be at most the limit of the same name",
    ),
    # Pod templates.
    Bad(f"{TEMPLATE}.replicas", 2, f"{TEMPLATE}.replicas", "unknown field"),
    Bad(f"{TEMPLATE}.spec", [], f"{TEMPLATE}.spec", "must be of type object"),
    Bad(f"{TEMPLATE}.spec.containers", [{"image": "x"}], f"{TEMPLATE}.spec.containers[0].name", "Required"),
    Bad(
        f"{TEMPLATE}.metadata.labels", {"a": "b" * 64}, f"{TEMPLATE}.metadata.labels.a", "more than 63 bytes"
    ),
    Bad(
        f"{TEMPLATE}.spec.volumes",
        [{"name": f"volume-{number}"} for number in range(65)],
        f"{TEMPLATE}.spec.volumes",
        "must have at most 64 items",
    ),
    Bad(
        f"{TEMPLATE}.spec",
        {f"field{number}": number for number in range(65)},
        f"{TEMPLATE}.spec",
        "must have at most 64 items",
    ),
    Bad(f"{TEMPLATE}.spec.huge", ["x" * 1000] * 400, "metadata.annotations", "more than 262144 bytes"),
    # Views, as a person might write them.
    Bad("metadata.name", "job-43", "metadata.name", "must be job-<spec.jobId>", good=JOB),
    Bad("metadata.name", "mine", "metadata.name", "must be job-<spec.jobId>", good=JOB),
    Bad("spec.jobId", "42", "spec.jobId", "must be of type integer", good=JOB),
    Bad("spec.jobId", LEFT_OUT, "spec.jobId", "Required value", good=JOB),
    Bad("status.state", "DONE", "status.state", '"PENDING", "PROCESSING", "INDEXED"', good=JOB),
]

LEFT_TO_THE_APISERVER = ("unknown field", "spec.resources", TEMPLATE, "metadata.annotations")
"""Parts of rows that the operator itself lets pass: the apiserver checks them, here or in the Deployment."""
