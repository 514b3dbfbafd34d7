"""What the local stack does in its database: the first set-up, ended workers, maintenance.

`stack` calls the set-up once a start; the maintenance thread calls the caretaker from then on.
"""

import contextlib

from docgrid_cli.local.modelserver import DIMENSION, MODEL, VERSION
from docgrid_core.database import Database
from docgrid_core.errors import ModelNotSearchable
from docgrid_core.jobs import StopReason
from docgrid_core.maintenance import Maintenance, Retention, Watch
from docgrid_core.migrations import migrate
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings, WorkerSettings
from docgrid_core.store import models, workers


def set_up(settings: DatabaseSettings, db: Database) -> EmbeddingModel:
    """Bring the database to this release's schema and see that a model is active; return that model.

    A model that a person has activated meanwhile stays the active one.
    """
    migrate(settings)
    models.add(
        db,
        provider="openai",
        name=MODEL,
        version=VERSION,
        dimension=DIMENSION,
        config={"input_type": True},
    )
    with contextlib.suppress(ModelNotSearchable):
        return models.active_model(db)
    return models.activate(db, MODEL, VERSION)


class DatabaseCaretaker:
    """The `Caretaker` of a real stack: recovery and promotion at every tick, retention when it is due."""

    def __init__(self, db: Database, settings: MaintenanceSettings, worker: WorkerSettings) -> None:
        """Work with the retry delays and the heartbeat interval of the stack's own workers."""
        watch = Watch(longest_gap=max(worker.heartbeat_interval, 2 * settings.interval))
        self._db = db
        self._maintenance = Maintenance(db, settings, worker.retry_policy, watch)
        self._retention = Retention(db, settings)

    def worker_ended(self, pod_uid: str, reason: StopReason) -> None:
        """Mark the worker STOPPED or DEAD, which fences it, unless it has said goodbye itself."""
        workers.mark_pod_ended(self._db, pod_uid=pod_uid, reason=reason)

    def tick(self) -> None:
        """Run every maintenance service that is due."""
        self._maintenance.run_once()
        self._retention.run_once()
