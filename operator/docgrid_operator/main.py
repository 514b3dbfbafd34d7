"""The operator's entry: settings, the clients, the watches, and a clean end.

Exit codes: 0 stopped by a signal · 2 bad settings · 1 anything else.
"""

import asyncio
import logging
import signal
import sys
import time

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import SettingsError
from docgrid_core.health import HealthServer
from docgrid_core.lastwords import leave_last_words
from docgrid_core.logconfig import configure_logging
from docgrid_core.settings import load_group
from docgrid_operator import watches
from docgrid_operator.cluster import Cluster, ClusterError, connect
from docgrid_operator.kinds import INDEXING_JOB, INDEXING_WORKER
from docgrid_operator.operator import Operator
from docgrid_operator.settings import OperatorSettings, Settings

log = structlog.get_logger(__name__)

RETRY_SECONDS = 2.0
"""Between two looks for our kinds, and before the watches begin anew."""
LIBRARY_SECONDS = 60.0
"""In which a library is let say one line of a level: kopf says one for each try of each watch."""


def main() -> None:
    """Run the operator until SIGTERM or SIGINT."""
    sys.exit(_run())


def _run() -> int:
    try:
        settings = load_group(Settings)
        configure_logging(settings.log)
        for handler in logging.getLogger().handlers:
            handler.addFilter(_Sparse())
        cluster = connect()
        database = Database(settings.database, application_name="docgrid-operator")
        operator = Operator(settings, cluster, database)
        if settings.operator.health_port:
            _serve_health(settings.operator, operator)
    except SettingsError as error:
        print(error, file=sys.stderr)
        leave_last_words(str(error))
        return 2
    _exit_when_told()
    try:
        wait_for_kinds(cluster, operator)
        operator.start()
        serve(cluster, operator, settings.operator)
    finally:
        operator.stop()
        cluster.close()
        database.close()
    return 0


def _exit_when_told() -> None:
    """End at a signal while kopf does not listen for one: PID 1 has no default action."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


def _serve_health(own: OperatorSettings, operator: Operator) -> None:
    HealthServer(
        own.health_host,
        own.health_port,
        setting="DOCGRID_OPERATOR_HEALTH_PORT",
        probes={"/livez": lambda: operator.problem, "/readyz": lambda: operator.not_ready},
    ).start()


def wait_for_kinds(cluster: Cluster, operator: Operator) -> None:
    """Wait until our kinds are served: kopf would never look for those that it did not find at its start."""
    while missing := _missing(cluster):
        if operator.waits_for != missing:
            operator.waits_for = missing
            log.warning("the operator waits", waits_for=missing)
        time.sleep(RETRY_SECONDS)
    operator.waits_for = ""


def _missing(cluster: Cluster) -> str:
    """Return what has to be there before anything can be watched; empty if all of it is."""
    try:
        missing = [kind.plural for kind in (INDEXING_WORKER, INDEXING_JOB) if not cluster.serves(kind)]
    except ClusterError:
        return "the apiserver"
    return f"CustomResourceDefinition of {', '.join(missing)}" if missing else ""


def serve(cluster: Cluster, operator: Operator, own: OperatorSettings) -> None:
    """Watch until a signal comes.

    kopf ends when a watch is told of an error that it does not know, or of a kind that is gone. Nothing is wrong
    with the rest of the operator then, so the watches begin anew.
    """
    while True:
        try:
            asyncio.run(watches.follow(operator, own.namespaces))
        except Exception as error:  # noqa: BLE001 - whatever it is, the text may carry anything
            _exit_when_told()
            log.warning("the watches begin anew", error_type=type(error).__name__)
            time.sleep(RETRY_SECONDS)
            wait_for_kinds(cluster, operator)
        else:
            return


class _Sparse(logging.Filter):
    """Lets one line of a logger and level through in `LIBRARY_SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a line is let through."""
        now, line = time.monotonic(), (record.name, record.levelno)
        if now - self._said.get(line, -LIBRARY_SECONDS) < LIBRARY_SECONDS:
            return False
        self._said[line] = now
        return True
