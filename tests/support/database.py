"""A migrated database for every test that asks for one: a clone of a template, made in milliseconds.

`db` is what most tests of the protocol take; `database_settings` is for those that open connections of their own
or start processes. The template has one active model of `DIMENSION` dimensions and is made once a session.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from docgrid_core.database import Database
from docgrid_core.migrations import migrate
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import models

DIMENSION = 8

# Copying the files is faster than logging every page of them, and nobody recovers a test's database.
CREATE = sql.SQL("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
# FORCE: what a test proves may be that a session is still there.
DROP = sql.SQL("DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True, slots=True)
class Template:
    """A database to clone, and the model that it holds."""

    name: str
    model: EmbeddingModel


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> Iterator[Template]:
    """Yield a database with the schema of this release and one active model."""
    name = create_database(postgres_url, template="template1")
    try:
        settings = settings_of(postgres_url, name)
        migrate(settings)
        db = Database(settings, application_name="docgrid-tests")
        models.add(db, provider="builtin", name="tiny", version="1", dimension=DIMENSION, config={})
        model = models.activate(db, "tiny")
        db.close()
        yield Template(name, model)
    finally:
        drop_database(postgres_url, name)


@pytest.fixture
def database_settings(postgres_url: str, migrated_template: Template) -> Iterator[DatabaseSettings]:
    """Yield the settings of a database of the test's own."""
    name = create_database(postgres_url, template=migrated_template.name)
    try:
        yield settings_of(postgres_url, name)
    finally:
        drop_database(postgres_url, name)


@pytest.fixture
def session(database_settings: DatabaseSettings) -> Iterator[psycopg.Connection]:
    """Yield a session of the test's own, whose transaction stays open."""
    with psycopg.connect(database_settings.url.get_secret_value()) as connection:
        yield connection


@pytest.fixture
def empty_database_settings(postgres_url: str) -> Iterator[DatabaseSettings]:
    """Yield the settings of a database that was never migrated."""
    name = create_database(postgres_url, template="template0")
    try:
        yield settings_of(postgres_url, name)
    finally:
        drop_database(postgres_url, name)


@pytest.fixture
def db(database_settings: DatabaseSettings) -> Iterator[Database]:
    """Yield a database of the test's own, connected."""
    db = Database(database_settings, application_name="docgrid-tests")
    try:
        yield db
    finally:
        db.close()


@pytest.fixture
def model(migrated_template: Template) -> EmbeddingModel:
    """Return the active model of the test's database."""
    return migrated_template.model


def create_database(server_url: str, *, template: str) -> str:
    """Create a database on the server and return its name."""
    name = f"docgrid_test_{uuid.uuid4().hex}"
    _run(server_url, CREATE.format(name=sql.Identifier(name), template=sql.Identifier(template)))
    return name


def drop_database(server_url: str, name: str) -> None:
    """Drop a database, whoever is still connected to it."""
    _run(server_url, DROP.format(name=sql.Identifier(name)))


def settings_of(server_url: str, name: str) -> DatabaseSettings:
    """Return the settings of one database of the server."""
    url = make_url(server_url).set(database=name)
    return DatabaseSettings(url=SecretStr(url.render_as_string(hide_password=False)))


def _run(server_url: str, statement: sql.Composed) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)
