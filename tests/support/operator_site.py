"""One release of the operator under test: its namespace, its rights, its database, and operators that run on it.

The operator is a process of its own with exactly the ServiceAccount of `manifests/rbac.yaml`.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from docgrid_cli.local.ports import free_ports
from docgrid_core.database import Database
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings
from docgrid_operator.settings import OperatorSettings
from support.cluster.audit import Write
from support.cluster.control_plane import ControlPlane
from support.cluster.fixtures import create_namespace
from support.database import Template, create_database, drop_database, settings_of
from support.layers import TESTS
from support.logged_process import LoggedProcess
from support.namespace_objects import NamespaceObjects
from support.races import wait_until
from support.worker_process import get

MANIFESTS = TESTS.parent / "manifests"
SERVICE_ACCOUNT = "docgrid-operator"

FAST = {
    "DOCGRID_OPERATOR_RESYNC_INTERVAL": "2s",
    "DOCGRID_OPERATOR_STATUS_INTERVAL": "1s",
    "DOCGRID_OPERATOR_VIEWS_INTERVAL": "1s",
    "DOCGRID_OPERATOR_LIVENESS_INTERVAL": "2s",
    "DOCGRID_OPERATOR_HEALTH_HOST": "127.0.0.1",
    "DOCGRID_MAINTENANCE_INTERVAL": "500ms",
    "DOCGRID_DATABASE_CONNECT_TIMEOUT": "2s",
}


class OperatorProcess(LoggedProcess):
    """One running operator."""

    def __init__(self, environment: Mapping[str, str], *, port: int, log: Path) -> None:
        super().__init__("docgrid_operator", environment, log=log)
        self.port = port

    @property
    def is_live(self) -> bool:
        """Tell whether the kubelet would leave it running."""
        return self.probe("/livez") == ""

    def probe(self, path: str) -> str:
        """Return what a probe complains about; empty if nothing."""
        status, body = get(self.port, path)
        return "" if status == HTTPStatus.OK else body

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric, 0 if it is not there; its labels have to be all of the metric's."""
        _status, body = get(self.port, "/metrics")
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        return 0.0

    def wait_for_rounds(self, *loops: str, count: int = 2) -> None:
        """Wait until each loop has run `count` more rounds: one that is under way may have begun too early."""
        targets = {loop: self.rounds(loop) + count for loop in loops}
        wait_until(lambda: all(self.rounds(loop) >= target for loop, target in targets.items()))

    def wait_until_quiet(self, site: "OperatorSite") -> int:
        """Wait until its loops have gone round without a write; return the mark of the audit log since then."""
        while True:
            mark = site.control_plane.audit.mark()
            self.wait_for_rounds("status", "views", "events")
            if not site.writes(since=mark):
                return mark

    def rounds(self, loop: str) -> float:
        """Return how many rounds a loop has run."""
        return self.metric("docgrid_operator_loop_seconds_count", loop=loop)


class OperatorSite(NamespaceObjects):
    """What a test sees of a release whose operators are processes of its own."""

    def __init__(
        self, control_plane: ControlPlane, namespace: str, database: DatabaseSettings, *, folder: Path
    ) -> None:
        super().__init__(control_plane, namespace)
        self.database = database
        self.db = Database(database, application_name="docgrid-tests")
        self.operators: list[OperatorProcess] = []
        self.server = control_plane.server
        """Where operators reach the apiserver: a test may put a proxy in between."""
        self._folder = folder
        self._numbers = itertools.count(1)
        self.kubectl("apply", "-f", str(MANIFESTS / "rbac.yaml"))

    def close(self) -> None:
        """Kill what still runs and close every connection."""
        for operator in self.operators:
            operator.kill()
        self.db.close()

    @property
    def user(self) -> str:
        """The operator's name in the audit log."""
        return f"system:serviceaccount:{self.namespace}:{SERVICE_ACCOUNT}"

    def start(self, **overrides: str) -> OperatorProcess:
        """Start an operator; `overrides` are the keys' ends, such as `operator_views_limit="5"`."""
        port = free_ports(count=1)
        environment = {
            **FAST,
            "DOCGRID_OPERATOR_HEALTH_PORT": str(port),
            "TMPDIR": str(self._folder),  # the client's copies of certificates, if it is killed
            "KUBECONFIG": str(self._write_kubeconfig()),
            "DOCGRID_DATABASE_URL": self.database.url.get_secret_value(),
            "DOCGRID_OPERATOR_NAMESPACE": self.namespace,
            "DOCGRID_OPERATOR_WORKER_IMAGE": "docgrid:test",
            **{f"DOCGRID_{key.upper()}": value for key, value in overrides.items()},
        }
        log = self._folder / f"operator-{next(self._numbers)}.log"
        operator = OperatorProcess(environment, port=port, log=log)
        self.operators.append(operator)
        return operator

    def _write_kubeconfig(self) -> Path:
        direct = self.control_plane.kubeconfig_for(SERVICE_ACCOUNT, self.namespace)
        path = self._folder / "operator.kubeconfig"
        path.write_text(direct.read_text().replace(self.control_plane.server, self.server))
        return path

    def start_ready(self, **overrides: str) -> OperatorProcess:
        """Start an operator and wait until it watches and reconciles."""
        operator = self.start(**overrides)
        operator.wait_for_line("the operator works")
        return operator

    def writes(self, *, since: int) -> list[Write]:
        """Return the operator's writes since a mark of the audit log."""
        return self.control_plane.audit_writes(self.user, since=since)


@contextmanager
def running_site(
    control_plane: ControlPlane, postgres_url: str, template: Template, folder: Path
) -> Iterator[OperatorSite]:
    """Yield a release with a namespace and a database of its own, for tests that share one."""
    namespace = f"test-{uuid4().hex[:12]}"
    database = create_database(postgres_url, template=template.name)
    try:
        create_namespace(control_plane.api, namespace)
        site = OperatorSite(control_plane, namespace, settings_of(postgres_url, database), folder=folder)
        try:
            yield site
        finally:
            site.close()
            control_plane.api.delete(f"/api/v1/namespaces/{namespace}")
    finally:
        drop_database(postgres_url, database)


def default_intervals() -> dict[str, str]:
    """Return the intervals that tests make shorter, as an installation has them: overrides for `start`."""
    fields = {
        **{f"DOCGRID_OPERATOR_{n.upper()}": f for n, f in OperatorSettings.model_fields.items()},
        **{f"DOCGRID_MAINTENANCE_{n.upper()}": f for n, f in MaintenanceSettings.model_fields.items()},
    }
    return {
        name.removeprefix("DOCGRID_").lower(): f"{fields[name].default.total_seconds():g}s"
        for name in FAST
        if name.endswith("_INTERVAL")
    }
