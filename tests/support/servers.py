"""Real servers for the tests: PostgreSQL with pgvector, S3 and an embedding model, once a session.

Each comes as a context manager, for benchmarks and chaos runs, and as a session fixture. Nothing needs to be
installed beside the Python packages; PostgreSQL is taken from `DOCGRID_TEST_DATABASE_URL`, else from a Docker
daemon that answers, else from the embedded server.
"""

import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from docgrid_cli.local.modelserver import ModelServer
from docgrid_cli.local.objectstore import PORTS, ObjectStoreServer
from docgrid_cli.local.ports import free_ports
from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_core.settings import StorageSettings

_IMAGE = "pgvector/pgvector:0.8.1-pg17"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yield the address of a server on which the tests may create databases, as a superuser."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def storage_settings() -> Iterator[StorageSettings]:
    """Yield settings of an S3 server on which the tests may create buckets; `docgrid` is not made yet."""
    with s3_server() as settings:
        yield settings


@pytest.fixture(scope="session")
def model_base_url() -> Iterator[str]:
    """Yield the root address of the real embedding server (384 dimensions)."""
    with model_server() as base_url:
        yield base_url


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the address of a PostgreSQL with pgvector: the given one, a container, or the embedded server."""
    given = os.environ.get("DOCGRID_TEST_DATABASE_URL")
    if given:
        yield given
    elif _docker_answers():
        with _postgres_container() as url:
            yield url
    else:
        with embedded_postgres() as server:
            yield server.url("postgres")


@contextlib.contextmanager
def embedded_postgres() -> Iterator[EmbeddedPostgres]:
    """Yield a running server of its own, for tests that kill, stop or restart it."""
    with scratch_folder() as folder:
        server = EmbeddedPostgres(folder / "postgres", port=free_ports(), durable=False)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def s3_server() -> Iterator[StorageSettings]:
    """Yield the settings of a fresh, empty S3 server."""
    access_key, secret_key = secrets.token_hex(8), secrets.token_hex(16)
    with scratch_folder() as folder:
        port = free_ports(count=PORTS)
        server = ObjectStoreServer(folder / "s3", port=port, access_key=access_key, secret_key=secret_key)
        server.start()
        try:
            yield StorageSettings(
                endpoint=server.endpoint,
                secure=False,
                access_key=SecretStr(access_key),
                secret_key=SecretStr(secret_key),
            )
        finally:
            server.stop()


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    """Yield the root address of a running embedding server."""
    with scratch_folder() as folder:
        server = ModelServer(folder / "model", port=free_ports())
        server.start()
        try:
            yield server.base_url
        finally:
            server.stop()


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for servers that a test starts; nothing of it remains."""
    with tempfile.TemporaryDirectory(prefix="servers-") as folder:
        yield Path(folder)


def _docker_answers() -> bool:
    if os.environ.get("DOCKER_HOST"):
        return True
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(3)
        client.connect("/var/run/docker.sock")
        client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return client.recv(64).startswith(b"HTTP/1.")
    return False


@contextlib.contextmanager
def _postgres_container() -> Iterator[str]:
    from testcontainers.postgres import PostgresContainer

    # No fsync: the data die with the container anyway.
    container = PostgresContainer(_IMAGE, username="docgrid", dbname="postgres", driver=None)
    container.with_command("postgres -c fsync=off -c max_connections=200")
    with container as server:
        yield server.get_connection_url()
