"""What hits every document alike and is nobody's fault: jobs wait for whoever corrects it, at no retry."""

import pytest

from support import tables
from support.fake_provider import FakeProvider, status
from support.races import wait_until
from support.site import Site


@pytest.mark.parametrize("code", [401, 404])
def test_a_wrong_key_or_model_name_defers_the_job_and_costs_no_retry(
    site: Site, provider: FakeProvider, code: int
) -> None:
    provider.plan(status(code))
    job_id = site.ingest("patient")
    site.start(worker_max_concurrency="1")
    wait_until(lambda: "DEFERRED" in tables.events(site.db, job_id))

    job = tables.job(site.db, job_id)
    assert (job.status, job.retry_count, job.error_code) == ("PENDING", 0, "EMBEDDING-PROVIDER-003")
    assert job.next_retry_at > job.updated_at

    tables.come_due(site.db)  # the key was corrected
    site.wait_indexed(job_id)
    assert [row.status for row in tables.attempts(site.db, job_id)] == ["RELEASED", "SUCCESS"]
    assert tables.job(site.db, job_id).retry_count == 0


def test_wrong_credentials_for_the_object_store_defer_the_job_and_cost_no_retry(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("patient")
    worker = site.start(storage_secret_key="not-the-key", worker_max_concurrency="1")
    wait_until(lambda: "DEFERRED" in tables.events(site.db, job_id))
    assert tables.job(site.db, job_id).error_code == "DOCUMENT-STORAGE-003"
    worker.kill()

    site.start()
    tables.come_due(site.db)
    site.wait_indexed(job_id)
    assert tables.job(site.db, job_id).retry_count == 0
