"""Every setting of workers, maintenance, pipeline and database, read once in each entry point.

Keys are `DOCGRID_<SECTION>_<FIELD>`. `load` is the one way in: it names key, value and rule of whatever is
wrong. The IndexingWorker's fields and defaults are generated from these models.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, TypeVar, get_type_hints

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from docgrid_core.durations import Duration, format_duration
from docgrid_core.errors import SettingsError
from docgrid_core.retry import RetryPolicy


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be greater than 0")
    return value


def _not_negative(value: timedelta) -> timedelta:
    if value < timedelta(0):
        raise ValueError("must be 0 or more")
    return value


def _host_and_port(value: str) -> str:
    if not re.fullmatch(r"[^/\s]+", value):
        raise ValueError("must be host:port, without scheme and path")
    return value


PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
NonNegativeDuration = Annotated[Duration, AfterValidator(_not_negative)]


class Section(BaseSettings):
    """One group of settings with a common prefix; frozen, so that it can be shared between threads."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", case_sensitive=False, validate_default=True, env_ignore_empty=True
    )


class DatabaseSettings(Section):
    """How to reach PostgreSQL, and the limits that every session of ours is under."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_DATABASE_")

    url: SecretStr = Field(description="postgresql://user:password@host:port/database")
    pooler: bool = Field(
        default=False,
        description="true behind a transaction pooler: no LISTEN, no prepared statements, no session state",
    )
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    lock_timeout: PositiveDuration = timedelta(seconds=5)
    statement_timeout: PositiveDuration = timedelta(seconds=60)
    store_timeout: PositiveDuration = Field(
        default=timedelta(minutes=15), description="statement time-out of the insert of a version's vectors"
    )
    idle_in_transaction_timeout: PositiveDuration = timedelta(seconds=15)


class WorkerSettings(Section):
    """The runtime of one worker process."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_WORKER_")

    name: str = Field(default="worker", min_length=1, max_length=200)
    polling_interval: PositiveDuration = timedelta(seconds=1)
    idle_max_polling_interval: PositiveDuration = timedelta(seconds=10)
    max_concurrency: int = Field(default=2, ge=1, le=256)
    lease_duration: PositiveDuration = timedelta(minutes=5)
    lease_renewal_interval: PositiveDuration = timedelta(minutes=1)
    heartbeat_interval: PositiveDuration = timedelta(seconds=10)
    dead_threshold: PositiveDuration = timedelta(seconds=30)
    shutdown_grace_period: NonNegativeDuration = timedelta(seconds=30)
    registration_timeout: PositiveDuration = timedelta(seconds=60)
    retry_initial_delay: PositiveDuration = timedelta(seconds=10)
    retry_max_delay: PositiveDuration = timedelta(minutes=5)
    retry_jitter: float = Field(default=0.2, ge=0, le=1, allow_inf_nan=False)
    max_deferral: PositiveDuration = timedelta(hours=24)
    health_host: str = "0.0.0.0"  # noqa: S104 - the kubelet's probes come from outside the pod
    health_port: int = Field(default=8080, ge=0, le=65535, description="0 = no health server")
    model: str = Field(default="", description="name of the embedding model; empty = the active one")
    namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    node_name: str = ""
    indexing_worker: str = ""
    indexing_worker_uid: str = ""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        _require_less(self, "lease_renewal_interval", "lease_duration")
        _require_less(self, "heartbeat_interval", "dead_threshold")
        _require_at_most(self, "polling_interval", "idle_max_polling_interval")
        _require_at_most(self, "retry_initial_delay", "retry_max_delay")
        return self

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long failed jobs wait."""
        return RetryPolicy(self.retry_initial_delay, self.retry_max_delay, self.retry_jitter)


class MaintenanceSettings(Section):
    """Recovery, promotion and retention, wherever they are hosted."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_MAINTENANCE_")

    interval: PositiveDuration = timedelta(seconds=2)
    safety_net_interval: PositiveDuration = Field(
        default=timedelta(seconds=30),
        description="how often a worker runs maintenance, in case nobody else does",
    )
    batch: int = Field(default=500, ge=1, le=10_000)
    retention_interval: PositiveDuration = timedelta(hours=1)
    keep_indexed: PositiveDuration = Field(
        default=timedelta(days=7), description="age of INDEXED jobs to prune"
    )
    keep_failed: PositiveDuration = Field(
        default=timedelta(days=30), description="age of FAILED and CANCELED jobs to prune"
    )
    keep_workers: PositiveDuration = Field(
        default=timedelta(days=7), description="age of ended workers to prune"
    )


class ChunkingSettings(Section):
    """How text is cut; Unicode code points."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_CHUNKING_")

    size: int = Field(default=1000, ge=1, le=100_000)
    overlap: int = Field(default=200, ge=0)
    max_chunks: int = Field(default=20_000, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        _require_less(self, "overlap", "size")
        return self


class ParsingSettings(Section):
    """Limits on what is read of a document."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_PARSING_")

    max_file_size: int = Field(default=50_000_000, ge=1, description="bytes")


class EmbeddingSettings(Section):
    """Which provider turns text into vectors, and how it is called."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_EMBEDDING_")

    provider: Literal["openai", "builtin"] = "openai"
    base_url: str = Field(default="", description="root of the server, without /v1")
    api_key: SecretStr | None = None
    batch_size: int = Field(default=32, ge=1, le=2048)
    max_code_points: int = Field(default=100_000, ge=1, description="most code points in one request")
    concurrency: int = Field(default=4, ge=1, le=256)
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    read_timeout: PositiveDuration = timedelta(seconds=30)

    @model_validator(mode="after")
    def _check_base_url(self) -> Self:
        if self.provider == "openai" and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(
                f"{_with_value(self, 'base_url')} must be an http:// or https:// address"
                f" when {_with_value(self, 'provider')}"
            )
        return self


class StorageSettings(Section):
    """The S3 server that holds the documents' bytes."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_STORAGE_")

    endpoint: Annotated[str, AfterValidator(_host_and_port)] = Field(description="host:port, without scheme")
    region: str = "us-east-1"
    secure: bool = True
    access_key: SecretStr
    secret_key: SecretStr
    bucket: str = Field(default="docgrid", min_length=3, max_length=63)
    connect_timeout: PositiveDuration = timedelta(seconds=3)
    read_timeout: PositiveDuration = timedelta(seconds=15)


class LogSettings(Section):
    """What is logged and how."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_LOG_")

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["json", "console"] = "json"


SECTIONS: tuple[type[Section], ...] = (
    DatabaseSettings,
    WorkerSettings,
    MaintenanceSettings,
    ChunkingSettings,
    ParsingSettings,
    EmbeddingSettings,
    StorageSettings,
    LogSettings,
)

S = TypeVar("S", bound=Section)
G = TypeVar("G")


def load(section: type[S], **overrides: Any) -> S:
    """Read one section from the environment; `overrides` win.

    Raises `SettingsError` with one line for each wrong setting: its key, the value (never a secret's) and the
    rule that it breaks.
    """
    try:
        return section(**overrides)
    except ValidationError as error:
        lines = [_explain(section, dict(problem)) for problem in error.errors(include_url=False)]
    raise SettingsError("\n".join(lines))


def load_group(group: type[G]) -> G:
    """Read every section of a dataclass of sections; raises one `SettingsError` for all that is wrong."""
    values: dict[str, Section] = {}
    problems: list[str] = []
    for name, section in get_type_hints(group).items():
        try:
            values[name] = load(section)
        except SettingsError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
    return group(**values)


def unknown_keys(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the `DOCGRID_…` variables that no section knows: most often a typing error."""
    known = {_key(section, name) for section in SECTIONS for name in section.model_fields}
    prefixes = tuple(section.model_config["env_prefix"] for section in SECTIONS)
    return sorted(key for key in environment if key.upper().startswith(prefixes) and key.upper() not in known)


# What a person reads instead of the validator's words, by its name for the broken rule.
_RULES = {
    "bool_parsing": "must be true or false",
    "finite_number": "must be a number",
    "float_parsing": "must be a number",
    "greater_than_equal": "must be {ge} or more",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be {expected}",
    "string_too_long": "must have {max_length} characters or less",
    "string_too_short": "must have {min_length} characters or more",
}


def _explain(section: type[Section], problem: Mapping[str, Any]) -> str:
    rule = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] in _RULES:
        rule = _RULES[problem["type"]].format(**problem.get("ctx", {}))
    if not problem["loc"]:  # a rule between two settings: the message names both with their values
        return rule
    field = str(problem["loc"][0])
    key = _key(section, field)
    if problem["type"] == "missing":
        return f"{key} is not set: it is required"
    info = section.model_fields.get(field)
    secret = info is not None and "SecretStr" in str(info.annotation)
    return f"{key}={'(secret)' if secret else problem['input']}: {rule}"


def _require_less(section: Section, smaller: str, larger: str) -> None:
    if getattr(section, smaller) >= getattr(section, larger):
        raise ValueError(f"{_with_value(section, smaller)} must be less than {_with_value(section, larger)}")


def _require_at_most(section: Section, smaller: str, larger: str) -> None:
    if getattr(section, smaller) > getattr(section, larger):
        raise ValueError(f"{_with_value(section, smaller)} must be at most {_with_value(section, larger)}")


def _with_value(section: Section, field: str) -> str:
    value = getattr(section, field)
    shown = format_duration(value) if isinstance(value, timedelta) else value
    return f"{_key(type(section), field)}={shown}"


def _key(section: type[Section], field: str) -> str:
    return f"{section.model_config['env_prefix']}{field.upper()}"
