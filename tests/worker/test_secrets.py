"""The promise that no text, title, file name, key, vector, token or credential leaves the worker (invariant 6)."""

import secrets
import subprocess

from docgrid_cli.local.ports import free_ports
from docgrid_core.jobs import JobStatus
from docgrid_core.settings import StorageSettings
from support import tables
from support.fake_provider import FakeProvider, Json, answer, status, vector_of
from support.site import Site
from support.worker_process import get


def drop_last(body: Json) -> None:
    body["data"].pop()


def test_nothing_that_is_secret_is_in_any_log_metric_event_or_process_list(
    site: Site, provider: FakeProvider, storage_settings: StorageSettings
) -> None:
    canary = f"canary{secrets.token_hex(8)}"
    title, name, text = f"title-{canary}", f"name-{canary}", f"text {canary} of the document"
    api_key = f"key-{canary}"
    # Honest, refused, failing, broken and inconsistent: every path on which something could slip out.
    provider.plan(answer(), status(400), status(500), answer(drop_last))
    port = free_ports()
    worker = site.start(
        worker_health_port=str(port), worker_max_concurrency="1", log_level="DEBUG", embedding_api_key=api_key
    )
    pages = []
    jobs = []
    for number in range(4):
        job_id = site.ingest(text, name=f"{name}-{number}", title=title)
        worker.wait_for_line("execution ended", count=number + 1)
        pages.append(get(port, "/metrics")[1])
        jobs.append(job_id)
    jobs.append(
        site.ingest(f"# {canary}\n\n{canary}".encode("utf-16"), name=f"{name}-md", suffix=".md", title=title)
    )
    site.wait_for(jobs[-1], JobStatus.FAILED)
    processes = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
    worker.drain()
    assert worker.wait() == 0

    tokens = tables.fetch(site.db, "SELECT DISTINCT claim_token FROM embedding_job_attempts")
    events = tables.fetch(site.db, "SELECT row_to_json(e)::text AS row FROM indexing_events e")
    reports = tables.fetch(
        site.db, "SELECT concat_ws(' ', error_code, error_message) AS row FROM embedding_job_attempts"
    )
    keys = tables.fetch(site.db, "SELECT object_key FROM file_objects")
    hidden = [
        canary,
        *(str(row.claim_token) for row in tokens),
        *(key.object_key for key in keys),
        site.db._engine.url.password or "no password",
        storage_settings.secret_key.get_secret_value(),
        str(vector_of(text)[0]),
    ]
    shown = {
        "log": worker.output(),
        "metrics": "".join(pages),
        "events": "\n".join(row.row for row in events),
        "reports": "\n".join(row.row for row in reports),
        "process list": processes,
    }
    assert provider.headers[0]["authorization"] == f"Bearer {api_key}"
    assert text in str(provider.requests[0])  # the canary went where it belongs
    for place, content in shown.items():
        found = [secret for secret in hidden if secret in content]
        assert found == [], place
