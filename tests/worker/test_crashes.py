"""Promises about workers that die, freeze or are declared dead: no job is lost, none runs twice to completion."""

from datetime import timedelta

from docgrid_core.jobs import JobId, StopReason
from docgrid_core.store import claim, models, workers
from docgrid_core.store.workers import RegisteredWorker
from support import tables
from support.fake_provider import FakeProvider
from support.races import wait_until
from support.site import Site
from support.worker_process import WorkerProcess

# Here only the lease may end: on a busy machine a heartbeat could come late.
SHORT_LEASE = {
    "worker_lease_duration": "1s",
    "worker_lease_renewal_interval": "200ms",
    "worker_dead_threshold": "1h",
}


def start_and_run(site: Site, provider: FakeProvider, **overrides: str) -> WorkerProcess:
    """Start a worker and return it once it waits for the provider in the middle of a job."""
    provider.gate.clear()
    worker = site.start(**{"worker_max_concurrency": "1", **overrides})
    provider.wait_for_requests(1)
    return worker


def endings(site: Site, job_id: JobId) -> list[tuple[str, str | None]]:
    """Return how each attempt of a job ended."""
    return [(row.status, row.failure_type) for row in tables.attempts(site.db, job_id)]


def test_a_killed_workers_job_is_taken_back_when_its_heartbeat_is_overdue(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("survives")
    worker = start_and_run(site, provider, worker_lease_duration="1h", worker_lease_renewal_interval="1m")
    site.tick()
    worker.kill()
    site.tick_until_recovered()
    row = tables.worker(site.db, worker.worker_id)
    assert (row.status, row.stop_reason) == ("DEAD", "HeartbeatOverdue")
    job = tables.job(site.db, job_id)
    assert (job.status, job.retry_count, job.next_retry_at) == ("PENDING", 1, None)
    provider.gate.set()
    site.start()
    site.wait_indexed(job_id)
    assert endings(site, job_id) == [("FAILED", "WORKER_CRASHED"), ("SUCCESS", None)]
    assert tables.events(site.db, job_id).count("INDEXED") == 1


def test_a_job_killed_at_every_attempt_fails_after_its_retries_on_any_path_cases_4_and_5(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("kills its worker")
    # 1. By its heartbeat.
    worker = start_and_run(site, provider, worker_lease_duration="1h", worker_lease_renewal_interval="1m")
    worker.kill()
    site.tick_until_recovered()
    # 2. By its lease: the heartbeat would be overdue only in an hour.
    worker = start_and_run(site, provider, worker_lease_duration="1s", worker_dead_threshold="1h")
    worker.kill()
    site.tick_until_recovered()
    # 3. By the one who saw it end.
    for reason, pod in ((StopReason.OOM_KILLED, "pod-1"), (StopReason.ERROR, "pod-2")):
        tables.come_due(site.db)
        site.tick()
        worker = start_and_run(site, provider, worker_pod_uid=pod, worker_dead_threshold="1h")
        worker.kill()
        assert workers.mark_pod_ended(site.db, pod_uid=pod, reason=reason) == [worker.worker_id]
        assert site.tick().recovered.settled == 1
    job = tables.job(site.db, job_id)
    assert (job.status, job.retry_count, job.max_retry_count) == ("FAILED", 3, 3)
    assert endings(site, job_id) == [
        ("FAILED", "WORKER_CRASHED"),
        ("FAILED", "WORKER_LEASE_EXPIRED"),
        ("FAILED", "WORKER_OOM_KILLED"),
        ("FAILED", "WORKER_CRASHED"),
    ]


def test_a_worker_declared_dead_stops_writes_nothing_and_exits_75_case_6(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("contested")
    worker = start_and_run(site, provider, worker_pod_uid="pod")
    workers.mark_pod_ended(site.db, pod_uid="pod", reason=StopReason.ERROR)
    site.tick_until_recovered()
    before = tables.dump(site.db)
    provider.gate.set()
    assert worker.wait(10) == 75
    assert tables.dump(site.db) == before
    site.start()
    site.wait_indexed(job_id)
    assert endings(site, job_id) == [("FAILED", "WORKER_CRASHED"), ("SUCCESS", None)]


def test_a_worker_frozen_for_longer_than_the_dead_threshold_is_fenced_and_exits_75(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("contested")
    frozen = start_and_run(site, provider)
    site.tick()
    frozen.freeze()
    site.tick_until_recovered()
    provider.gate.set()
    other = site.start()
    site.wait_indexed(job_id)
    other.drain()
    assert other.wait() == 0
    before = tables.dump(site.db)
    frozen.thaw()
    assert frozen.wait(10) == 75
    assert tables.dump(site.db) == before
    assert tables.worker(site.db, frozen.worker_id).status == "DEAD"
    assert endings(site, job_id) == [("FAILED", "WORKER_CRASHED"), ("SUCCESS", None)]


def test_a_worker_frozen_in_a_transaction_holds_up_nobody(site: Site, provider: FakeProvider) -> None:
    tables.hold_updates(site.db, "document_versions")
    with tables.holding(site.db):
        job_id = site.ingest("contested")
        frozen = site.start(worker_max_concurrency="1")
        wait_until(lambda: "LOCKED" in tables.events(site.db, job_id))
        wait_until(site.worker_waits_for_lock)
        frozen.freeze()
    site.tick_until_recovered()
    site.start()
    site.wait_indexed(job_id)
    frozen.thaw()
    assert frozen.wait(10) == 75


def test_renewals_that_are_stuck_for_longer_than_the_lease_complete_nothing_twice_case_1(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("contested")
    loser = start_and_run(site, provider, **SHORT_LEASE)
    with site.db._engine.begin() as connection:
        # While somebody holds the row, renewals find it busy and extend nothing.
        connection.exec_driver_sql(f"SELECT FROM embedding_jobs WHERE id = {job_id} FOR NO KEY UPDATE")
        wait_until(lambda: expired(site, job_id))
    site.tick_until_recovered()
    winner = site.start(worker_max_concurrency="1")
    provider.wait_for_requests(1)
    provider.gate.set()
    site.wait_indexed(job_id)
    loser.wait_for_line("execution ended")
    assert [line["outcome"] for line in loser.lines("execution ended")] == ["lost"]
    assert [line["outcome"] for line in winner.lines("execution ended")] == ["indexed"]
    assert endings(site, job_id) == [("FAILED", "WORKER_LEASE_EXPIRED"), ("SUCCESS", None)]


def expired(site: Site, job_id: JobId) -> bool:
    """Tell whether the lease of a job has run out."""
    return bool(
        tables.value(
            site.db,
            "SELECT lock_expires_at < clock_timestamp() FROM embedding_jobs WHERE id = :id",
            id=job_id,
        )
    )


def test_a_slow_but_live_job_is_renewed_and_recovery_leaves_it_alone_case_3(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("slow")
    start_and_run(site, provider, **SHORT_LEASE)

    def outlived_two_leases() -> bool:
        assert site.tick().recovered.settled == 0
        row = tables.job(site.db, job_id)
        return bool(row.lock_expires_at - row.locked_at > timedelta(seconds=3))

    wait_until(outlived_two_leases)
    provider.gate.set()
    site.wait_indexed(job_id)
    assert endings(site, job_id) == [("SUCCESS", None)]


def test_a_new_pod_with_the_dead_ones_name_takes_its_jobs_over_case_8(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("inherited")
    slow = {
        "worker_dead_threshold": "1h",
        "worker_lease_duration": "1h",
        "worker_lease_renewal_interval": "1m",
    }
    same = {"worker_pod_uid": "uid", "worker_pod_name": "docgrid-0", "worker_name": "docgrid-0"}
    first = start_and_run(site, provider, **slow, **same)
    first.kill()
    provider.gate.set()
    second = site.start_registered(**slow, **same)
    assert second.worker_id != first.worker_id
    row = tables.worker(site.db, first.worker_id)
    assert (row.status, row.stop_reason) == ("DEAD", "Restarted")
    site.tick()  # unless the new worker's own safety net was first
    site.wait_indexed(job_id)
    assert endings(site, job_id) == [("FAILED", "WORKER_CRASHED"), ("SUCCESS", None)]


def test_a_claim_that_the_worker_never_heard_of_is_released_without_a_retry(
    site: Site, provider: FakeProvider
) -> None:
    worker = site.start_registered()
    row = tables.worker(site.db, worker.worker_id)
    worker.freeze()  # so that the claim is not its own
    job_id = site.ingest("unheard of")
    me = RegisteredWorker(worker.worker_id, row.instance_id, models.active_model(site.db))
    (claimed,) = claim.claim(site.db, me, limit=1, lease_duration=timedelta(hours=1)).claims
    assert claimed.job_id == job_id
    worker.thaw()
    site.wait_indexed(job_id)
    assert tables.job(site.db, job_id).retry_count == 0
    assert tables.events(site.db, job_id)[:4] == ["JOB_CREATED", "LOCKED", "RELEASED", "LOCKED"]
    assert endings(site, job_id) == [("SUCCESS", None)]


def test_a_claim_whose_answer_is_lost_with_its_connection_is_released_without_a_retry(site: Site) -> None:
    job_id = site.ingest("lost")
    with site.network_to_database() as network:
        network.swallow_answer_to(lambda part: b"gen_random_uuid" in part)
        # No turn of the clock finds the jobs within this test: the failed claim itself has to.
        worker = site.start(
            worker_lease_duration="2h", worker_lease_renewal_interval="1h", **site.through(network)
        )
        assert network.swallowed.wait(30)
        site.wait_indexed(job_id)
        worker.kill()
    assert tables.job(site.db, job_id).retry_count == 0
    assert tables.events(site.db, job_id)[:4] == ["JOB_CREATED", "LOCKED", "RELEASED", "LOCKED"]
    assert endings(site, job_id) == [("SUCCESS", None)]


def test_without_anybody_elses_maintenance_the_other_workers_take_the_jobs_of_a_killed_one_back(
    site: Site, provider: FakeProvider
) -> None:
    job_id = site.ingest("inherited")
    victim = start_and_run(site, provider, worker_lease_duration="1h", worker_lease_renewal_interval="1m")
    site.start_registered(maintenance_safety_net_interval="300ms")
    victim.kill()
    provider.gate.set()
    site.wait_indexed(job_id)
    assert endings(site, job_id) == [("FAILED", "WORKER_CRASHED"), ("SUCCESS", None)]
