"""Every section of settings that the operator reads, once, at its start."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from docgrid_core.settings import (
    DatabaseSettings,
    LogSettings,
    MaintenanceSettings,
    PositiveDuration,
    Section,
    WorkerSettings,
)

ALL_NAMESPACES = "*"


class OperatorSettings(Section):
    """Which pools the operator looks after, and how often it looks."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_OPERATOR_")

    namespace: Annotated[str, Field(min_length=1, max_length=63)]
    """namespace of the release: where the IndexingJob views are written"""
    watch_namespaces: str = ""
    """namespaces besides its own whose IndexingWorkers are looked after, separated by commas; `*` = all"""
    worker_image: Annotated[str, Field(min_length=1)]
    """image of worker pods whose IndexingWorker names none"""
    deployment_name: str = ""
    """name of the operator's own Deployment, which then owns the views; empty = nobody does"""
    resync_interval: PositiveDuration = timedelta(minutes=1)
    """how often every object is listed anew and compared, in case a watch missed something"""
    liveness_interval: PositiveDuration = timedelta(seconds=10)
    """how often the workers' pods are listed, besides at once when one of them ends"""
    status_interval: PositiveDuration = timedelta(seconds=10)
    """how often workers and jobs are counted for the IndexingWorkers' status"""
    views_interval: PositiveDuration = timedelta(seconds=2)
    """how often the IndexingJob views are brought up to date"""
    views_limit: Annotated[int, Field(ge=0, le=5000)] = 500
    """most IndexingJob views; 0 = none"""
    views_writes_per_second: Annotated[int, Field(ge=1, le=1000)] = 45
    """most writes of views in a second"""
    views_redact: bool = False
    """leave titles and addresses of documents out of the views"""
    reconcilers: Annotated[int, Field(ge=1, le=32)] = 8
    """IndexingWorkers that are reconciled at a time"""
    health_host: str = "0.0.0.0"  # noqa: S104 - the kubelet's probes come from outside the pod
    """address of the health and metrics port"""
    health_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """port of `/livez`, `/readyz`, `/metrics`; 0 = none"""

    @property
    def namespaces(self) -> tuple[str, ...] | None:
        """The namespaces to look at, its own first; None = all."""
        names = tuple(name.strip() for name in self.watch_namespaces.split(",") if name.strip())
        if ALL_NAMESPACES in names:
            return None
        return tuple(dict.fromkeys((self.namespace, *names)))


@dataclass(frozen=True, slots=True)
class Settings:
    """What the process is told. `worker` holds what all pools have in common: how failed jobs are retried."""

    database: DatabaseSettings
    operator: OperatorSettings
    worker: WorkerSettings
    maintenance: MaintenanceSettings
    log: LogSettings
