"""Write what the chart and manifests/install.yaml are made of; `--check` only compares.

From crds/ come the chart's templates of them and, in its values.schema.json, the schema of a pool; from the comments
of values.yaml its README; from the chart, by helm, manifests/install.yaml. `make generate` and `make check` call it.
helm is that of the tests' control plane, hence `PYTHONPATH=tests`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from chart_page import Undocumented, build_page
from generate_crds import HEAD as CRD_HEAD
from support.cluster import binaries
from support.cluster.errors import ClusterUnavailable

ROOT = Path(__file__).resolve().parent.parent
CHART = Path("helm", "docgrid")
CRDS = CHART / "templates" / "crds"
SCHEMA = CHART / "values.schema.json"
INSTALL = Path("manifests", "install.yaml")
RELEASE = "docgrid"
# Without Helm nobody reads the annotation that crds.keep sets.
VALUES = ("database.secretName=docgrid-database", "crds.keep=false")

INSTALL_HEAD = f"""\
# Made by tools/generate_chart.py from the chart in {CHART}; `make generate` writes it anew. For those without Helm:
#   kubectl create secret generic docgrid-database --namespace NAMESPACE --from-literal=url='postgresql://…'
#   kubectl apply --server-side --namespace NAMESPACE --filename {INSTALL}
"""
# What the labels say only of an object that Helm looks after.
_HELM_LABELS = ("app.kubernetes.io/managed-by: Helm", "helm.sh/chart: ")
_CRD_METADATA = """\
metadata:
  name: {name}
  {{{{- if .Values.crds.keep }}}}
  annotations:
    helm.sh/resource-policy: keep
  {{{{- end }}}}
  labels:
    {{{{- include "docgrid.labels" . | nindent 4 }}}}
"""

Schema = dict[str, Any]


class Failed(Exception):
    """A file can not be made."""


def main() -> int:
    """Write the files or compare them; return 1 if one has to be written again or can not be made."""
    check = "--check" in sys.argv[1:]
    try:
        # install.yaml is rendered from the chart with the other files in it, so they are first.
        chart = build_chart_files()
        surplus = [path for path in list_crd_templates() if path not in chart]
        if not check:
            write(chart, surplus)
            write({INSTALL: build_install()})
            return 0
        stale = [*differing(chart), *surplus] or differing({INSTALL: build_install()})
    except (Failed, Undocumented, ClusterUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    for path in stale:
        print(f"{path} is not up to date: run make generate")
    return 1 if stale else 0


def list_crd_templates() -> list[Path]:
    """Return the templates that are there, by their paths in the repository."""
    return [path.relative_to(ROOT) for path in (ROOT / CRDS).glob("*")]


def write(files: Mapping[Path, str], surplus: Iterable[Path] = ()) -> None:
    """Write files, and remove what nothing makes any more."""
    for path, text in files.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
    for path in surplus:
        (ROOT / path).unlink()


def differing(files: Mapping[Path, str]) -> list[Path]:
    """Return the files whose text is not this one."""
    return [path for path, text in files.items() if not _same(ROOT / path, text)]


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def build_chart_files() -> dict[Path, str]:
    """Return the generated files of the chart, by their paths in the repository."""
    crds = sorted((ROOT / "crds").glob("*.yaml"))
    return {
        **{CRDS / path.name: build_crd_template(path) for path in crds},
        SCHEMA: build_values_schema(),
        CHART / "README.md": build_page((ROOT / CHART / "values.yaml").read_text()),
    }


def build_crd_template(path: Path) -> str:
    """Return the template of a CustomResourceDefinition: as it is, between the guards of the values `crds`."""
    text = path.read_text().removeprefix(CRD_HEAD)
    name = yaml.safe_load(text)["metadata"]["name"]
    metadata = f"metadata:\n  name: {name}\n"
    if "{{" in text or text.count(metadata) != 1:
        raise Failed(f"{path.name}: helm would read it otherwise than kubectl")
    body = text.replace(metadata, _CRD_METADATA.format(name=name))
    return (
        f"{{{{- /* Made by tools/generate_chart.py from crds/{path.name}; `make generate` writes it anew. */}}}}\n"
        f"{{{{- if .Values.crds.enabled }}}}\n{body}{{{{- end }}}}\n"
    )


def build_values_schema() -> str:
    """Return values.schema.json with the schema of a pool from its CustomResourceDefinition; the rest stays."""
    schema = json.loads((ROOT / SCHEMA).read_text())
    crd = yaml.safe_load((ROOT / "crds" / "docgrid.dev_indexingworkers.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    pool = to_json_schema(spec)
    pool["required"].remove("database")  # the chart gives it the operator's
    schema["definitions"]["indexingWorkerSpec"] = pool
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def to_json_schema(node: Schema) -> Schema:
    """Return a part of a structural schema as JSON schema: what CEL says is left to the apiserver."""
    kept = ("type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "required")
    schema: Schema = {name: node[name] for name in kept if name in node}
    if node.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    if "items" in node:
        schema["items"] = to_json_schema(node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = to_json_schema(node["additionalProperties"])
    elif "properties" in node:
        schema["properties"] = {name: to_json_schema(part) for name, part in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
    return schema


def build_install() -> str:
    """Return the manifests of a release with the default values, without what only Helm needs."""
    rendered = run_helm("template", RELEASE, str(ROOT / CHART), "--no-hooks", "--set", ",".join(VALUES))
    lines = [line for line in rendered.splitlines() if not line.strip().startswith(_HELM_LABELS)]
    kept = [line for line in lines if line.strip() and not line.startswith("# Source: ")]
    return INSTALL_HEAD + "\n".join(kept) + "\n"


def run_helm(*arguments: str) -> str:
    """Return what helm says; raises `Failed` with its complaint."""
    helm = binaries.prepare_tools(lambda line: print(line, file=sys.stderr))["helm"]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [str(helm), *arguments],
            env={"PATH": os.defpath, "HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise Failed(f"helm {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
