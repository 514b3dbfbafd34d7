"""Embedding models: adding one with its partition of `embeddings`, making it the searchable one, dropping it.

Called by the CLI and the local stack; registration and workers read the active model from here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from docgrid_core.database import Database, Transaction, transactional
from docgrid_core.errors import BadParameter, ModelChangeNotAllowed, ModelNotFound, ModelNotSearchable
from docgrid_core.jobs import ModelId
from docgrid_core.records import EmbeddingModel
from docgrid_core.schema import MAX_DIMENSION
from docgrid_core.store import partitions

_MODELS = """
    SELECT id, provider, model_name, model_version, dimension, config, is_active, is_searchable
    FROM embedding_models
"""
LIST = text(f"{_MODELS} ORDER BY id")
NAMED = text(f"{_MODELS} WHERE model_name = :name ORDER BY id")
BY_ID = text(f"{_MODELS} WHERE id = :model_id")
ACTIVE = text(f"{_MODELS} WHERE is_active AND is_searchable")
LOCK_ACTIVE = text(f"{_MODELS} WHERE is_active AND is_searchable FOR KEY SHARE")
LOCK_IF_ACTIVE = text(f"{_MODELS} WHERE id = :model_id AND is_active AND is_searchable FOR KEY SHARE")
# FOR UPDATE, not the weaker lock of other rows: it waits for whoever has just inserted a job of a model.
LOCK_ALL = text(f"{_MODELS} ORDER BY id FOR UPDATE")
LOCK_SAME = text(
    f"{_MODELS} WHERE provider = :provider AND model_name = :name AND model_version = :version FOR UPDATE"
)

INSERT = text(
    """
    INSERT INTO embedding_models (provider, model_name, model_version, dimension, config)
    VALUES (:provider, :name, :version, :dimension, :config)
    ON CONFLICT (provider, model_name, model_version) DO NOTHING
    """
).bindparams(bindparam("config", type_=JSONB))
DEACTIVATE = text(
    """
    UPDATE embedding_models SET is_active = false, is_searchable = false, updated_at = clock_timestamp()
    WHERE is_active OR is_searchable
    """
)
ACTIVATE = text(
    """
    UPDATE embedding_models SET is_active = true, is_searchable = true, updated_at = clock_timestamp()
    WHERE id = :model_id
    """
)
DELETE = text("DELETE FROM embedding_models WHERE id = :model_id")

LIVE_JOB_OF_ANOTHER = text(
    """
    SELECT id FROM embedding_jobs
    WHERE status IN ('PENDING', 'PROCESSING') AND embedding_model_id <> :model_id
    LIMIT 1
    """
)
# A document in use whose current version the model has not embedded whole.
INCOMPLETE_DOCUMENT = text(
    """
    SELECT d.id
    FROM documents d
    JOIN document_versions v ON v.id = d.current_version_id AND v.status = 'INDEXED'
    JOIN document_chunks c ON c.document_version_id = v.id
    LEFT JOIN embeddings e ON e.chunk_id = c.id AND e.embedding_model_id = :model_id AND e.status = 'ACTIVE'
    WHERE d.deleted_at IS NULL AND e.chunk_id IS NULL
    LIMIT 1
    """
)
REFERRING_JOB = text("SELECT id FROM embedding_jobs WHERE embedding_model_id = :model_id LIMIT 1")
REFERRING_WORKER = text("SELECT id FROM worker_nodes WHERE embedding_model_id = :model_id LIMIT 1")


def add(
    db: Database, *, provider: str, name: str, version: str, dimension: int, config: Mapping[str, Any]
) -> EmbeddingModel:
    """Add a model and the partition for its vectors; a repeat returns the model, with its partition restored.

    A new model is neither active nor searchable. Raises `BadParameter`, and `ModelChangeNotAllowed` when the
    same model exists with another dimension or configuration.
    """
    if not provider or not name:
        raise BadParameter("an embedding model needs a provider and a name")
    if not 1 <= dimension <= MAX_DIMENSION:
        raise BadParameter(f"the dimension must be 1 to {MAX_DIMENSION}, not {dimension}")
    wanted = EmbeddingModel(ModelId(0), provider, name, version, dimension, dict(config), False, False)
    partitions.patiently(lambda: partitions.finish_detaching(db))
    return partitions.patiently(lambda: _add(db, wanted))


@transactional
def activate(tx: Transaction, name: str, version: str = "") -> EmbeddingModel:
    """Make a model the active and searchable one, in place of the one that was.

    Changes nothing when it is that already. Raises `ModelNotFound`, and `ModelChangeNotAllowed` while a live job
    of another model exists or a document in use is not wholly embedded with it.
    """
    # 1. The lock: from here on no job of another model appears.
    model = _choose([_model(row) for row in tx.execute(LOCK_ALL)], name, version)
    if model.is_active and model.is_searchable:
        return model
    # 2. What the switch stands on, read after the lock.
    _require_ready(tx, model)
    # 3. Both flags of both models, in one transaction.
    tx.execute(DEACTIVATE)
    tx.execute(ACTIVATE, model_id=model.id)
    return find_model_in(tx, "")


def drop(db: Database, name: str, version: str = "") -> None:
    """Remove a model with all its vectors; a repeat finishes what a crash or a time-out left.

    Raises `ModelNotFound`, and `ModelChangeNotAllowed` while the model is active or a job or a worker row
    refers to it.
    """
    model = db.run(lambda tx: _require_unused(tx, name, version))
    partitions.patiently(lambda: partitions.detach(db, model.id))
    partitions.patiently(lambda: _remove(db, name, version))


@transactional
def list_models(tx: Transaction) -> list[EmbeddingModel]:
    """Return every model, oldest first."""
    return models_in(tx)


@transactional
def active_model(tx: Transaction) -> EmbeddingModel:
    """Return the active and searchable model; raises `ModelNotSearchable`."""
    return find_model_in(tx, "")


@transactional
def find_model(tx: Transaction, name: str, version: str = "") -> EmbeddingModel:
    """Return a model by its name; see `find_model_in`."""
    return find_model_in(tx, name, version)


def find_model_in(tx: Transaction, name: str, version: str = "") -> EmbeddingModel:
    """Return a model by its name; an empty name is the active one.

    Raises `ModelNotFound`, `ModelNotSearchable` when none is active, and `BadParameter` when several models have
    the name and the version does not tell them apart.
    """
    if name:
        return _choose([_model(row) for row in tx.execute(NAMED, name=name)], name, version)
    return _require_active(tx.execute(ACTIVE).one_or_none())


def models_in(tx: Transaction) -> list[EmbeddingModel]:
    """Return every model, oldest first, within a transaction."""
    return [_model(row) for row in tx.execute(LIST)]


def model_to_serve(models: Sequence[EmbeddingModel], name: str, version: str) -> EmbeddingModel:
    """Return the one of all models whose jobs a worker of these settings claims.

    An empty name is the active one, an empty version the active one of the name, if one is active. Pure; raises
    what `find_model_in` raises.
    """
    for model in models:
        if model.is_active and model.is_searchable and name in {"", model.name} and not version:
            return model
    return _choose(list(models), name, version) if name else _require_active(None)


def model_by_id(tx: Transaction, model_id: ModelId) -> EmbeddingModel:
    """Return the model that a job pins, within a transaction."""
    return _model(tx.execute(BY_ID, model_id=model_id).one())


def lock_active_model(tx: Transaction) -> EmbeddingModel:
    """Return the active model for a job that this transaction inserts; `activate` waits for it to end.

    Without the lock a switch could commit between the choice and the insert, and leave a job of a model that
    nothing completes any more. Raises `ModelNotSearchable`.
    """
    # A switch committed during the wait takes the row out of the answer: the second look finds the new one.
    return _require_active(tx.execute(LOCK_ACTIVE).one_or_none() or tx.execute(LOCK_ACTIVE).one_or_none())


def lock_if_active(tx: Transaction, model_id: ModelId) -> bool:
    """Tell whether the model of a job that this transaction reopens is active; `activate` waits for it to end."""
    return tx.execute(LOCK_IF_ACTIVE, model_id=model_id).one_or_none() is not None


@transactional
def _add(tx: Transaction, wanted: EmbeddingModel) -> EmbeddingModel:
    identity = {"provider": wanted.provider, "name": wanted.name, "version": wanted.version}
    tx.execute(INSERT, **identity, dimension=wanted.dimension, config=wanted.config)
    model = _model(tx.execute(LOCK_SAME, **identity).one())
    if (model.dimension, model.config) != (wanted.dimension, wanted.config):
        raise ModelChangeNotAllowed(
            f"model {model.name} exists with dimension {model.dimension} and a configuration of its own:"
            " add the other one under another version"
        )
    if not partitions.is_attached(tx, model.id):
        partitions.build(tx, model)
    return model


def _require_ready(tx: Transaction, model: EmbeddingModel) -> None:
    if not partitions.is_attached(tx, model.id):
        raise ModelChangeNotAllowed(f"model {model.name} has no partition: add it again, then activate it")
    if (job := tx.execute(LIVE_JOB_OF_ANOTHER, model_id=model.id).scalar()) is not None:
        raise ModelChangeNotAllowed(f"job {job} of another model has not ended: wait for it, or cancel it")
    if (document := tx.execute(INCOMPLETE_DOCUMENT, model_id=model.id).scalar()) is not None:
        raise ModelChangeNotAllowed(
            f"document {document} is not embedded with model {model.name}: search would lose it"
        )


def _require_unused(tx: Transaction, name: str, version: str) -> EmbeddingModel:
    model = _choose([_model(row) for row in tx.execute(LOCK_ALL)], name, version)
    if model.is_active or model.is_searchable:
        raise ModelChangeNotAllowed(f"model {name} is active: activate another one first")
    if (job := tx.execute(REFERRING_JOB, model_id=model.id).scalar()) is not None:
        raise ModelChangeNotAllowed(
            f"job {job} refers to model {name}: drop the model when `docgrid prune` has removed its ended jobs"
        )
    if (worker := tx.execute(REFERRING_WORKER, model_id=model.id).scalar()) is not None:
        raise ModelChangeNotAllowed(
            f"worker {worker} refers to model {name}: stop it, and drop the model when `docgrid prune` has"
            " removed its row"
        )
    return model


@transactional
def _remove(tx: Transaction, name: str, version: str) -> None:
    """Drop table and row together, unless something has come to refer to the model meanwhile."""
    model = _require_unused(tx, name, version)
    if partitions.is_attached(tx, model.id):
        raise ModelChangeNotAllowed(f"model {name} was added again while it was dropped")
    partitions.drop_detached(tx, model.id)
    tx.execute(DELETE, model_id=model.id)


def _choose(models: list[EmbeddingModel], name: str, version: str) -> EmbeddingModel:
    named = [model for model in models if model.name == name]
    if not named:
        raise ModelNotFound(f"there is no embedding model {name}")
    if len(named) == 1 and not version:
        return named[0]
    exact = [model for model in named if model.version == version]
    if version and not exact:
        raise ModelNotFound(f"there is no version {version} of embedding model {name}")
    if len(exact) != 1:
        choices = ", ".join(f"{model.provider} {model.version or '(no version)'}" for model in named)
        raise BadParameter(f"several embedding models are called {name}: {choices}")
    return exact[0]


def _require_active(row: Sequence[Any] | None) -> EmbeddingModel:
    if row is None:
        raise ModelNotSearchable("no embedding model is active: run `docgrid models activate NAME`")
    return _model(row)


def _model(row: Sequence[Any]) -> EmbeddingModel:
    return EmbeddingModel(*row)
