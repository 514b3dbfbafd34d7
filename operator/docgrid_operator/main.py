"""The operator's entry: settings, the clients, kopf's watches, and a clean end.

Exit codes: 0 stopped by a signal · 2 bad settings · 1 anything else.
"""

import itertools
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import kopf
import structlog

from docgrid_core.database import Database
from docgrid_core.errors import SettingsError
from docgrid_core.health import HealthServer
from docgrid_core.logconfig import configure_logging
from docgrid_core.settings import load_group
from docgrid_operator import handlers
from docgrid_operator.cluster import Cluster, ClusterError, connect
from docgrid_operator.kinds import INDEXING_JOB, INDEXING_WORKER
from docgrid_operator.operator import Operator
from docgrid_operator.resync import WATCHED, label_selector
from docgrid_operator.settings import OperatorSettings, Settings

log = structlog.get_logger(__name__)

WATCH_SECONDS = 300
"""How long one watch request lasts before it is made anew."""
CRD_POLL_SECONDS = 2.0


def main() -> None:
    """Run the operator until SIGTERM or SIGINT."""
    sys.exit(_run())


def _run() -> int:
    try:
        settings = load_group(Settings)
        configure_logging(settings.log)
        cluster = connect()
        database = Database(settings.database, application_name="docgrid-operator")
        operator = Operator(settings, cluster, database)
        if settings.operator.health_port:
            _serve_health(settings.operator, operator)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # until kopf takes over: PID 1 has no default action
    try:
        wait_for_kinds(cluster, operator)
        serve(operator, settings)
    finally:
        cluster.close()
        database.close()
    return 0


def _serve_health(own: OperatorSettings, operator: Operator) -> None:
    HealthServer(
        own.health_host,
        own.health_port,
        setting="DOCGRID_OPERATOR_HEALTH_PORT",
        live=lambda: operator.problem,
        ready=lambda: operator.not_ready,
    ).start()


def wait_for_kinds(cluster: Cluster, operator: Operator) -> None:
    """Wait until our kinds are served: kopf would never look for those that it did not find at its start."""
    while True:
        try:
            missing = [kind.plural for kind in (INDEXING_WORKER, INDEXING_JOB) if not cluster.serves(kind)]
            operator.waits_for = f"CustomResourceDefinition of {', '.join(missing)}" if missing else ""
        except ClusterError:
            operator.waits_for = "the apiserver"
        if not operator.waits_for:
            return
        log.warning("the operator waits", waits_for=operator.waits_for)
        time.sleep(CRD_POLL_SECONDS)


def serve(operator: Operator, settings: Settings) -> None:
    """Watch and reconcile until a signal comes."""
    registry = kopf.OperatorRegistry()
    handlers.register(
        registry,
        operator.observed,
        enqueue=operator.enqueue,
        pod_told=operator.pod_told,
        view_told=operator.view_told,
    )

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**arguments)

    @kopf.on.startup(registry=registry)
    def startup(**_: Any) -> None:
        operator.start()

    @kopf.on.cleanup(registry=registry)
    def cleanup(**_: Any) -> None:
        operator.stop()

    namespaces = settings.operator.namespaces
    kopf.run(
        registry=registry,
        settings=_kopf_settings(),
        standalone=True,
        clusterwide=namespaces is None,
        namespaces=namespaces or (),
    )


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = (
        False  # Events are ours to write: aggregated, and only those that a person needs
    )
    settings.scanning.disabled = True  # which namespaces and kinds are watched is known at the start
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = _Backoffs()
    for kind in WATCHED:
        if selector := label_selector(kind):
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return settings


class _Backoffs:
    """Seconds between the tries of a watch: without an end, because an apiserver may be away for long."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1, 2)
        yield from itertools.repeat(3)
