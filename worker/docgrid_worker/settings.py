"""Every section of settings that a worker reads, once, at its start."""

from dataclasses import dataclass

from docgrid_core.settings import (
    ChunkingSettings,
    DatabaseSettings,
    EmbeddingSettings,
    LogSettings,
    MaintenanceSettings,
    ParsingSettings,
    StorageSettings,
    WorkerSettings,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the process is told: the order is that of the settings page."""

    database: DatabaseSettings
    worker: WorkerSettings
    maintenance: MaintenanceSettings
    chunking: ChunkingSettings
    parsing: ParsingSettings
    embedding: EmbeddingSettings
    storage: StorageSettings
    log: LogSettings
