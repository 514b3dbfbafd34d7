"""Write crds/ and docs/operations/crds.md from the models of the operator's API; `--check` only compares.

`make generate` and `make check` call it. Whoever changes a field of the API, or a setting that is a field's default,
runs it and commits what it wrote.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crd_schema import Schema, build_schema
from crds_page import build_page
from docgrid_operator.api.v1alpha1 import (
    IndexingJob,
    IndexingWorker,
)
from docgrid_operator.api.v1alpha1.indexing_job import IndexingJobStatus
from docgrid_operator.api.v1alpha1.model import ApiModel, Resource
from docgrid_operator.api.v1alpha1.status import IndexingWorkerStatus
from docgrid_operator.kinds import INDEXING_JOB, INDEXING_WORKER, Kind

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/operations/crds.md")
HEAD = (
    "# Made by tools/generate_crds.py from docgrid_operator.api.v1alpha1; `make generate` writes it anew.\n"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; a `wide` one is shown with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """What a CustomResourceDefinition says besides the schema."""

    kind: Kind
    short_name: str
    model: type[Resource]
    status: type[ApiModel]
    columns: tuple[Column, ...]
    subresources: dict[str, Any]
    selectable: tuple[str, ...] = ()


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


DEFINITIONS = (
    Definition(
        INDEXING_WORKER,
        "iw",
        IndexingWorker,
        IndexingWorkerStatus,
        columns=(
            Column("Ready", ".status.readyReplicas", "integer"),
            Column("Active", ".status.workers.active", "integer"),
            Column("Dead", ".status.workers.dead", "integer"),
            Column("Pending", ".status.queue.ready", "integer"),
            Column("Processing", ".status.queue.processing", "integer"),
            Column("Failed", ".status.queue.failed", "integer"),
            Column("Oldest", ".status.queue.oldestReadyAt", "date"),
            # What keeps workers from running is seen at the first look.
            Column("Reason", _condition("Available", "reason")),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Replicas", ".spec.replicas", "integer", wide=True),
            Column("Model", ".spec.model.name", wide=True),
            Column("Delayed", ".status.queue.delayed", "integer", wide=True),
            Column("Suspended", ".spec.suspend", "boolean", wide=True),
            Column("Available", _condition("Available", "status"), wide=True),
        ),
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    ),
    Definition(
        INDEXING_JOB,
        "ij",
        IndexingJob,
        IndexingJobStatus,
        columns=(
            Column("Document", ".spec.title"),
            Column("Version", ".spec.versionNo", "integer"),
            Column("State", ".status.state"),
            Column("Attempt", ".status.attempt", "integer"),
            Column("Worker", ".status.worker"),
            Column("Reason", ".status.errorCode"),
            Column("Age", ".status.createdAt", "date"),
            Column("Model", ".spec.model", wide=True),
            Column("Retries", ".status.retries", wide=True),
            # Not a date: kubectl shows those as ages, and this one lies ahead.
            Column("Next Retry", ".status.nextRetryAt", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
        subresources={},
        selectable=(".status.state",),
    ),
)


def main() -> int:
    """Write the files or compare them; return 1 if one has to be written again."""
    files = build_files()
    if "--check" not in sys.argv[1:]:
        for path, text in files.items():
            (ROOT / path).parent.mkdir(exist_ok=True)
            (ROOT / path).write_text(text)
        return 0
    stale = [path for path, text in files.items() if not same(ROOT / path, text)]
    stale += [path for path in (ROOT / "crds").glob("*.yaml") if path.relative_to(ROOT) not in files]
    for path in stale:
        print(f"{path} is not up to date: run make generate")
    return 1 if stale else 0


def same(path: Path, text: str) -> bool:
    """Say whether a file has this text."""
    return path.is_file() and path.read_text() == text


def build_files() -> dict[Path, str]:
    """Return every generated file by its path in the repository."""
    definitions = {definition.kind: build_definition(definition) for definition in DEFINITIONS}
    files = {
        Path("crds", f"{kind.group}_{kind.plural}.yaml"): HEAD + dump(crd)
        for kind, crd in definitions.items()
    }
    return {**files, PAGE: build_page(list(definitions.values()))}


def build_definition(definition: Definition) -> Schema:
    """Return one CustomResourceDefinition."""
    kind = definition.kind
    version: Schema = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [build_column(column) for column in definition.columns],
        "schema": {"openAPIV3Schema": build_root(definition)},
        "subresources": definition.subresources,
        "selectableFields": [{"jsonPath": path} for path in definition.selectable],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [definition.short_name],
                "categories": ["docgrid"],
            },
            "versions": [{name: value for name, value in version.items() if value}],
        },
    }


def build_root(definition: Definition) -> Schema:
    """Return the schema of the whole object: the apiserver knows what is in its metadata."""
    root = build_schema(definition.model)
    properties = {
        "apiVersion": {"type": "string", "description": "Version of the API."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
        "spec": root["properties"]["spec"],
        "status": build_schema(definition.status),
    }
    return {**root, "properties": properties, "required": ["spec"]}


def build_column(column: Column) -> Schema:
    """Return a column as the definition takes it."""
    written = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**written, "priority": 1} if column.wide else written


def dump(crd: Schema) -> str:
    """Return YAML without anchors, in the order in which it was built."""
    text = yaml.dump(crd, Dumper=_NoAnchors, sort_keys=False, width=110, allow_unicode=True)
    return str(text)


class _NoAnchors(yaml.SafeDumper):
    """A dumper that writes equal objects out each time."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


if __name__ == "__main__":
    sys.exit(main())
