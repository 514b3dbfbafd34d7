"""The README of the chart: how to install it, and a table of its values from the comments of values.yaml.

`generate_chart` calls it. A value's description is the comment above it that begins with two dashes, as helm-docs
reads it; a value without one fails, so that none is forgotten.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MARK = "# -- "
_TYPES = {"bool": "true or false", "int": "whole number", "float": "number", "map": "map", "seq": "list"}

HEAD = """# Helm chart of DocGrid

Installs the operator, its rights, and the custom resource definitions; with the value `indexingWorkers` also pools of workers. The guide, with what a database, an object store and an embedding server have to be: [Install](../../docs/operations/install.md).

```sh
kubectl create namespace docgrid
kubectl create secret generic docgrid-database --namespace docgrid --from-literal=url='postgresql://…'
helm install docgrid helm/docgrid --namespace docgrid --set database.secretName=docgrid-database
helm test docgrid --namespace docgrid --logs
```
Needs Kubernetes 1.31 or newer; tested with Helm 4.3. A wrong value is refused with its path before anything is installed.

This page is made by `tools/generate_chart.py` from the comments in `values.yaml`.

## Values
| value | type | default | about |
|---|---|---|---|
"""  # noqa: E501 - a paragraph of the page


class Undocumented(Exception):
    """A value has no description."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the chart, by its path in values.yaml."""

    path: str
    type: str
    default: str
    about: str


def build_page(values: str) -> str:
    """Return the README for the text of values.yaml; raises `Undocumented`."""
    rows = [
        f"| `{value.path}` | {value.type} | `{value.default}` | {value.about} |\n"
        for value in list_values(values)
    ]
    return HEAD + "".join(rows)


def list_values(text: str) -> list[Value]:
    """Return every value in the order of the file; raises `Undocumented`."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return [] if root is None else list(_walk(root, text.splitlines(), path=()))


def _walk(node: yaml.Node, lines: list[str], *, path: tuple[str, ...]) -> Iterator[Value]:
    for key, value in node.value:
        inner = (*path, key.value)
        about = _description(lines, key.start_mark.line)
        if about:
            yield Value(".".join(inner), _type(value), _default(value), about)
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _walk(value, lines, path=inner)
        else:
            raise Undocumented(f"{'.'.join(inner)} has no comment that begins with {MARK.strip()}")


def _description(lines: list[str], line: int) -> str:
    """Return the comment right above a line, from its mark on; empty if it has none."""
    comment: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        comment.insert(0, lines[line].strip())
        if comment[0].startswith(MARK):
            return " ".join([comment[0].removeprefix(MARK), *(text.lstrip("# ") for text in comment[1:])])
    return ""


def _type(node: yaml.Node) -> str:
    return _TYPES.get(node.tag.rpartition(":")[2], "text")


def _default(node: yaml.Node) -> str:
    value: Any = yaml.safe_load(yaml.serialize(node))
    return json.dumps(value, ensure_ascii=False)
