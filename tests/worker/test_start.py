"""Promises about the start of a worker and its endpoint: what is wrong is one line and an exit code."""

import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from docgrid_cli.local.ports import free_ports
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import models
from support import tables
from support.fake_provider import FakeProvider
from support.races import wait_until
from support.site import Site
from support.worker_process import WorkerProcess, get


@pytest.fixture
def last_words(tmp_path: Path) -> Path:
    """Make an empty file as the kubelet does for the reason of a container's end."""
    file = tmp_path / "termination-log"
    file.touch()
    return file


def last_reason(worker: WorkerProcess) -> str:
    """Return what the one line says that a worker ended with."""
    return str(worker.lines()[-1]["reason"])


def test_wrong_settings_are_one_line_each_with_key_value_and_rule_and_nothing_starts(site: Site) -> None:
    worker = site.start(worker_max_concurrency="0", worker_heartbeat_interval="1h", storage_endpoint="")
    assert worker.wait() == 2
    lines = worker.output().splitlines()
    assert lines == [
        "DOCGRID_WORKER_MAX_CONCURRENCY=0: must be 1 or more",
        "DOCGRID_STORAGE_ENDPOINT is not set: it is required",
    ]
    assert tables.value(site.db, "SELECT count(*) FROM worker_nodes") == 0


def test_a_rule_between_two_settings_names_both(site: Site) -> None:
    worker = site.start(worker_heartbeat_interval="1h")
    assert worker.wait() == 2
    assert worker.output().splitlines() == [
        "DOCGRID_WORKER_HEARTBEAT_INTERVAL=1h must be less than DOCGRID_WORKER_DEAD_THRESHOLD=1s500ms"
    ]


def test_a_taken_port_is_told_and_nothing_is_registered(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = site.start(worker_health_port=str(port))
        assert worker.wait() == 2
    assert f"DOCGRID_WORKER_HEALTH_PORT={port}" in last_reason(worker)
    assert tables.value(site.db, "SELECT count(*) FROM worker_nodes") == 0


def test_a_provider_that_is_not_the_models_is_told_and_leaves_no_live_worker(site: Site) -> None:
    worker = site.start(embedding_provider="builtin")
    assert worker.wait() == 2
    assert "DOCGRID_EMBEDDING_PROVIDER=builtin" in last_reason(worker)
    assert tables.fetch(site.db, "SELECT status FROM worker_nodes WHERE status <> 'STOPPED'") == []


@dataclass(frozen=True)
class Hopeless:
    """Settings with which no worker can register, and what it says of them."""

    override: Callable[[Site], dict[str, str]]
    reason: str


def with_url(**parts: object) -> Callable[[Site], dict[str, str]]:
    """Return an override of parts of the database's address."""

    def override(site: Site) -> dict[str, str]:
        url = site.db._engine.url.set(drivername="postgresql", **parts)  # type: ignore[arg-type]
        return {"database_url": url.render_as_string(hide_password=False)}

    return override


HOPELESS = {
    "unknown model": Hopeless(lambda _: {"worker_model": "nosuch"}, "there is no embedding model nosuch"),
    "unknown version": Hopeless(
        lambda _: {"worker_model": "fake-model", "worker_model_version": "9"},
        "there is no version 9 of embedding model fake-model",
    ),
    "no such database": Hopeless(
        with_url(database="nosuch"), "the database of DOCGRID_DATABASE_URL does not exist"
    ),
    "wrong password": Hopeless(with_url(password="wrong"), "the database refuses the password"),
    "nobody there": Hopeless(with_url(port=1), "the database can not be reached"),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_a_worker_that_can_not_register_in_time_gives_up_with_75_and_says_why(
    site: Site, name: str, last_words: Path
) -> None:
    worker = site.start(
        worker_registration_timeout="100ms",
        log_termination_file=str(last_words),
        **HOPELESS[name].override(site),
    )
    assert worker.wait() == 75
    assert last_reason(worker).startswith(HOPELESS[name].reason)
    assert last_words.read_text().endswith(last_reason(worker))
    assert tables.value(site.db, "SELECT count(*) FROM worker_nodes") == 0


def test_a_database_that_a_person_has_to_repair_is_not_waited_for_a_whole_minute(
    site: Site,
) -> None:
    started = time.monotonic()
    worker = site.start(**HOPELESS["wrong password"].override(site))
    assert worker.wait(45) == 75
    assert 10 < time.monotonic() - started < 45


def test_wrong_settings_are_left_for_the_kubelet_where_it_has_made_a_file_for_them(
    site: Site, last_words: Path
) -> None:
    last_words.write_text("of the run before, which was longer than what is to be said " * 10)
    worker = site.start(worker_max_concurrency="0", log_termination_file=str(last_words))
    assert worker.wait() == 2
    assert last_words.read_text() == "DOCGRID_WORKER_MAX_CONCURRENCY=0: must be 1 or more"
    # Without such a file none is made.
    last_words.unlink()
    worker = site.start(worker_max_concurrency="0", log_termination_file=str(last_words))
    assert worker.wait() == 2
    assert not last_words.exists()


def test_a_database_without_schema_is_told_what_to_do(
    site: Site, empty_database_settings: DatabaseSettings
) -> None:
    worker = site.start(
        worker_registration_timeout="100ms", database_url=empty_database_settings.url.get_secret_value()
    )
    assert worker.wait() == 75
    assert "run `docgrid migrate`" in last_reason(worker)


def test_a_worker_that_is_not_registered_claims_nothing_and_is_not_ready(
    site: Site, provider: FakeProvider
) -> None:
    tables.change(site.db, "UPDATE embedding_models SET is_active = false, is_searchable = false")
    port = free_ports()
    worker = site.start(worker_health_port=str(port))
    worker.wait_for_line("not registered yet", count=2)
    assert get(port, "/readyz") == get(port, "/servingz") == (503, "not registered\n")
    assert get(port, "/livez") == (200, "ok\n")
    models.activate(site.db, "fake-model")
    job_id = site.ingest("at last")
    site.wait_indexed(job_id)


def test_the_endpoint_tells_whether_the_worker_lives_is_ready_and_what_it_counts(
    site: Site, provider: FakeProvider
) -> None:
    port = free_ports()
    worker = site.start(worker_health_port=str(port), worker_max_concurrency="1")
    site.wait_indexed(site.ingest("counted"))
    assert get(port, "/livez") == get(port, "/servingz") == get(port, "/readyz") == (200, "ok\n")
    assert get(port, "/nothing")[0] == 404
    wait_until(lambda: 'docgrid_worker_polls_skipped_total{reason="empty queue"}' in get(port, "/metrics")[1])
    status, body = get(port, "/metrics")
    assert status == 200
    assert metric(body, "docgrid_worker_jobs_claimed_total") == 1
    assert metric(body, 'docgrid_worker_jobs_finished_total{failure_type="",outcome="indexed"}') == 1
    assert metric(body, 'docgrid_worker_stage_seconds_count{stage="embed"}') == 1
    assert metric(body, "docgrid_worker_slots_busy") == 0
    provider.gate.clear()
    site.ingest("running")
    provider.wait_for_requests(2)
    assert metric(get(port, "/metrics")[1], "docgrid_worker_slots_busy") == 1
    worker.drain()
    worker.wait_for_line("draining")
    assert get(port, "/readyz") == get(port, "/servingz") == (503, "draining\n")
    assert get(port, "/livez") == (200, "ok\n")
    provider.gate.set()
    assert worker.wait() == 0


def test_livez_names_the_thread_that_hangs_and_is_green_again_when_it_goes_on(site: Site) -> None:
    port = free_ports()
    with site.network_to_database() as network:
        site.start(worker_health_port=str(port), worker_dead_threshold="1h", **site.through(network))
        site.wait_indexed(site.ingest("before"))  # so that there are connections that can hang
        assert get(port, "/livez") == (200, "ok\n")
        network.stall()
        wait_until(lambda: get(port, "/livez")[0] == 503)
        assert get(port, "/livez")[1] in {"the heartbeat thread is stuck\n", "the poller is stuck\n"}
        network.flow()
        wait_until(lambda: get(port, "/livez") == (200, "ok\n"))
        site.wait_indexed(site.ingest("afterwards"))


def metric(body: str, name: str) -> float:
    """Return the value of one sample of a metrics page."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", body, re.MULTILINE)
    assert found is not None, body
    return float(found[1])


def test_every_log_line_is_one_json_object_with_time_level_event_and_worker(site: Site) -> None:
    worker = site.start(worker_pod_name="docgrid-0")
    site.wait_indexed(site.ingest("logged"))
    worker.drain()
    assert worker.wait() == 0
    for line in worker.output().splitlines():
        assert {"time", "level", "event", "worker"} <= set(json.loads(line))
        assert json.loads(line)["worker"] == "docgrid-0"
