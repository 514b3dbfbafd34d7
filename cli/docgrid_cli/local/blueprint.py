"""What a local stack is made of: its three servers and the way its workers are started.

Starts nothing; `stack` builds from it.
"""

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from docgrid_cli.local.leftovers import SERVER, WORKER, marked
from docgrid_cli.local.modelserver import ModelServer
from docgrid_cli.local.objectstore import PORTS, ObjectStoreServer
from docgrid_cli.local.ports import LOOPBACK, free_ports
from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_cli.local.process import Launch
from docgrid_cli.local.profile import Profile


@dataclass(frozen=True)
class Servers:
    """The servers of one stack, with the credentials of the object store."""

    postgres: EmbeddedPostgres
    objects: ObjectStoreServer
    model: ModelServer
    access_key: str
    secret_key: str

    def profile(self) -> Profile:
        """Return how to reach them; PostgreSQL has been started."""
        return Profile(
            database_url=self.postgres.url(),
            postgres_port=self.postgres.port,
            s3_port=self.objects.port,
            s3_access_key=self.access_key,
            s3_secret_key=self.secret_key,
            model_port=self.model.port,
        )


def build_servers(home: Path, *, earlier: Profile | None) -> Servers:
    """Choose ports and credentials: those of the `earlier` run, as far as the ports are still free."""
    access_key = earlier.s3_access_key if earlier else secrets.token_hex(10)
    secret_key = earlier.s3_secret_key if earlier else secrets.token_hex(20)
    objects = ObjectStoreServer(
        home / "s3",
        port=free_ports(count=PORTS, wanted=earlier.s3_port if earlier else None),
        access_key=access_key,
        secret_key=secret_key,
    )
    postgres = EmbeddedPostgres(
        home / "postgres",
        port=free_ports(wanted=earlier.postgres_port if earlier else None, avoid=objects.ports()),
        durable=True,
    )
    model = ModelServer(
        home / "model",
        port=free_ports(
            wanted=earlier.model_port if earlier else None, avoid=[*objects.ports(), postgres.port]
        ),
    )
    for server in (objects, model):
        server.mark = marked(home, SERVER)
    return Servers(postgres, objects, model, access_key, secret_key)


def worker_launch(
    home: Path, *, name: str, pod_uid: str, settings: Mapping[str, str], environment: Mapping[str, str]
) -> Launch:
    """Return how a worker process is started: in `environment`, but always against this stack (`settings`)."""
    folder = home / "workers"
    identity = {
        "DOCGRID_WORKER_NAME": name,
        "DOCGRID_WORKER_POD_NAME": name,
        "DOCGRID_WORKER_POD_UID": pod_uid,
        # Nobody probes a worker here, and a frozen one must fence itself instead of being killed.
        "DOCGRID_WORKER_HEALTH_PORT": "0",
        "DOCGRID_WORKER_HEALTH_HOST": LOOPBACK,
    }
    return Launch(
        command=[sys.executable, "-P", "-m", "docgrid_worker"],
        environment={**environment, **settings, **identity, **marked(home, WORKER)},
        folder=folder,
        log=folder / f"{name}.log",
    )
