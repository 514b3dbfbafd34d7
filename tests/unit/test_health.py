"""The health and metrics port: what it answers, and what it says when it can not be had."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import Counter

from docgrid_cli.local.ports import free_ports
from docgrid_core.errors import SettingsError
from docgrid_core.health import HealthServer
from support.worker_process import get

COUNTED = Counter("docgrid_test_health", "Something that a test counts")


@contextmanager
def serving(*, live: str = "", ready: str = "") -> Iterator[int]:
    """Serve probes that say this, and yield the port."""
    port = free_ports()
    server = HealthServer(
        "127.0.0.1", port, setting="A_PORT", probes={"/livez": lambda: live, "/readyz": lambda: ready}
    )
    server.start()
    try:
        yield port
    finally:
        server.stop()


def test_a_probe_is_ok_or_says_what_is_wrong() -> None:
    with serving(ready="draining") as port:
        assert get(port, "/livez") == (200, "ok\n")
        assert get(port, "/readyz") == (503, "draining\n")
        assert get(port, "/other")[0] == 404


def test_the_port_shows_what_the_process_counts() -> None:
    COUNTED.inc()
    with serving() as port:
        status, body = get(port, "/metrics")
    assert (status, "docgrid_test_health_total 1.0" in body) == (200, True)


def test_a_taken_port_is_named_with_its_setting_and_free_again_when_stopped() -> None:
    with serving() as port, pytest.raises(SettingsError, match=f"A_PORT={port}: can not listen"):
        HealthServer("127.0.0.1", port, setting="A_PORT", probes={})
    HealthServer("127.0.0.1", port, setting="A_PORT", probes={})._server.server_close()
