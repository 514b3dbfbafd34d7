"""What is wrong is said where a person looks, within a minute, and heals by itself once it is right."""

from collections.abc import Mapping
from typing import Any

import pytest

from docgrid_operator.kinds import Object
from support import tables
from support.backing import build_secret
from support.chart import CHART
from support.races import wait_until
from support.release import OPERATOR, RELEASE, Release

pytestmark = pytest.mark.timeout(240)

WITHIN = 60.0
"""Seconds in which it is said."""


@pytest.fixture
def pool(release: Release) -> "Pool":
    """Return the pool of a test, not applied yet."""
    return Pool(release)


class Pool:
    """One pool that something is wrong with."""

    def __init__(self, release: Release) -> None:
        self._release = release

    def apply(self, **spec: Any) -> None:
        """Apply it, with one worker."""
        self._release.apply_workers(1, **spec)

    def wait_for(self, reason: str, words: str) -> None:
        """Wait until its condition has the reason and the words, and its row in the table has the reason."""

        def is_told() -> bool:
            condition: Mapping[str, str] = self._release.condition("Available")
            return condition.get("reason") == reason and words in condition["message"]

        wait_until(is_told, limit=WITHIN)
        assert reason in self._release.kubectl("get", "indexingworker", "pool", "--no-headers").out


def test_a_secret_that_is_missing_is_named_and_the_pool_starts_once_it_is_there(
    pool: Pool, release: Release
) -> None:
    pool.apply(database={"secretRef": {"name": "made-later"}})
    pool.wait_for("CreateContainerConfigError", 'secret "made-later" not found')
    release.kubectl.apply(build_secret("made-later", {"url": release.backing.url(release.database)}))
    release.wait_until_ready(1)


def test_a_key_that_is_missing_is_named(pool: Pool) -> None:
    pool.apply(database={"secretRef": {"name": "docgrid-database", "key": "address"}})
    pool.wait_for("CreateContainerConfigError", "couldn't find key address in Secret")


def test_an_image_that_can_not_be_pulled_is_named(pool: Pool) -> None:
    pool.apply(image="registry.invalid/docgrid:none", podTemplate={})
    pool.wait_for("ImagePullBackOff", "registry.invalid/docgrid:none")


def test_a_wrong_password_is_told_in_the_workers_own_words(pool: Pool, release: Release) -> None:
    wrong = release.backing.url(release.database).replace(release.backing.password, "wrong-password")
    release.kubectl.apply(build_secret("wrong-password", {"url": wrong}))
    pool.apply(database={"secretRef": {"name": "wrong-password"}})
    pool.wait_for("CrashLoopBackOff", "password")
    told = release.kubectl("get", "indexingworkers,pods,events", "--output=yaml").out
    assert "docgrid:wrong-password@" not in told


def test_a_volume_that_is_not_there_is_named(pool: Pool) -> None:
    volume = {"name": "extra", "configMap": {"name": "not-there"}}
    worker = {"name": "worker", "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]}
    pool.apply(podTemplate={"spec": {"volumes": [volume], "containers": [worker]}})
    pool.wait_for("ContainerCreating", "not-there")


def test_an_embedding_server_that_nobody_reaches_is_told_by_the_jobs(pool: Pool, release: Release) -> None:
    pool.apply(embedding={"provider": "openai", "baseUrl": "http://nobody.invalid:8000"})
    job_id = release.documents.ingest("waits for its server")

    def status() -> Object:
        return (release.get("indexingjob", f"job-{job_id}") or {}).get("status") or {}

    wait_until(lambda: status().get("errorCode") == "EMBEDDING-PROVIDER-001", limit=WITHIN)
    assert status()["message"] == "the embedding server can not be reached, try again"
    assert "EMBEDDING-PROVIDER-001" in release.kubectl("get", "indexingjob", f"job-{job_id}").out
    pool.apply()
    release.wait_until_ready(1)
    tables.come_due(release.db)
    release.finish(job_id)


def test_an_operator_without_a_usable_database_says_so_in_its_pod(bare_release: Release) -> None:
    release = bare_release
    wrong = release.backing.url(release.database).replace(release.backing.password, "wrong-password")
    release.kubectl.apply(build_secret("docgrid-database", {"url": wrong}))
    refused = release.helm.attempt(
        "install", RELEASE, str(CHART), "--wait", "--timeout=15s", values=release.values()
    )
    assert refused.code == 1
    described = release.kubectl("describe", "pods", "--selector=app.kubernetes.io/component=operator").out
    assert "the database refuses the password" in described
    assert "docgrid:wrong-password@" not in described
    # Right again, it goes on by itself.
    release.backing.make_secrets(release.kubectl, release.database)
    release.kubectl("rollout", "status", OPERATOR, "--timeout=90s", limit=100)
