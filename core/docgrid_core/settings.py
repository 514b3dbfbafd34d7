"""Every setting of workers, maintenance, pipeline and database, read once in each entry point.

Keys are `DOCGRID_<SECTION>_<FIELD>`. `load` is the one way in: it names key, value and rule of whatever is
wrong. docs/operations/settings.md is made from these models, and later the IndexingWorker's fields are.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
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

    url: SecretStr
    """`postgresql://user:password@host:port/database?sslmode=…`; special characters of the password
    percent-encoded"""
    pooler: bool = False
    """`true` behind a transaction pooler: no LISTEN, no prepared statements, no session state"""
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    """wait for a connection"""
    lock_timeout: PositiveDuration = timedelta(seconds=5)
    """wait for a row lock, before the transaction starts over"""
    statement_timeout: PositiveDuration = timedelta(seconds=60)
    """longest statement"""
    store_timeout: PositiveDuration = timedelta(minutes=15)
    """longest statement of the transaction that stores a version's vectors"""
    idle_in_transaction_timeout: PositiveDuration = timedelta(seconds=15)
    """a session that stands still in a transaction for so long is ended by the server"""


class WorkerSettings(Section):
    """The runtime of one worker process."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_WORKER_")

    name: Annotated[str, Field(min_length=1, max_length=200)] = "worker"
    """what people call it; decides nothing"""
    polling_interval: PositiveDuration = timedelta(seconds=1)
    """first wait after an empty poll; it doubles from there"""
    idle_max_polling_interval: PositiveDuration = timedelta(seconds=10)
    """longest wait between polls"""
    max_concurrency: Annotated[int, Field(ge=1, le=256)] = 2
    """slots: jobs that run at a time"""
    lease_duration: PositiveDuration = timedelta(minutes=5)
    """how long a claim or renewal holds"""
    lease_renewal_interval: PositiveDuration = timedelta(minutes=1)
    """how often held leases are renewed"""
    heartbeat_interval: PositiveDuration = timedelta(seconds=10)
    """how often the worker says that it lives"""
    dead_threshold: PositiveDuration = timedelta(seconds=30)
    """a heartbeat as old as this counts as DEAD; stored on the worker's row"""
    shutdown_grace_period: NonNegativeDuration = timedelta(seconds=30)
    """time that running jobs get after SIGTERM"""
    registration_timeout: PositiveDuration = timedelta(seconds=60)
    """how long a starting worker waits for database and model; at most 15 s if a person has to repair the database"""
    retry_initial_delay: PositiveDuration = timedelta(seconds=10)
    """wait before the first retry; it doubles from there. The same in the whole installation"""
    retry_max_delay: PositiveDuration = timedelta(minutes=5)
    """longest wait before a retry"""
    retry_jitter: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.2
    """part by which a delay is made shorter or longer at random"""
    max_deferral: PositiveDuration = timedelta(hours=24)
    """how long a job may be deferred, since the first time, before it fails"""
    health_host: str = "0.0.0.0"  # noqa: S104 - the kubelet's probes come from outside the pod
    """address of the health and metrics port"""
    health_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """port of `/livez`, `/readyz`, `/metrics` and `/servingz`; 0 = none"""
    model: str = ""
    """name of the embedding model whose jobs are claimed; empty = the active one"""
    model_version: str = ""
    """version of that model; empty = the only one of that name, or of several the active one"""
    namespace: str = ""
    """Kubernetes namespace of the pod"""
    pod_name: str = ""
    """name of the pod"""
    pod_uid: str = ""
    """uid of the pod, by which its end is reported"""
    node_name: str = ""
    """node that the pod runs on"""
    indexing_worker: str = ""
    """pool that the worker belongs to"""
    indexing_worker_uid: str = ""
    """uid of that pool"""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        _require_less(self, "lease_renewal_interval", "lease_duration")
        _require_less(self, "heartbeat_interval", "dead_threshold")
        _require_at_most(self, "polling_interval", "idle_max_polling_interval")
        _require_at_most(self, "retry_initial_delay", "retry_max_delay")
        if self.model_version and not self.model:
            raise ValueError(f"{_with_value(self, 'model_version')} needs {_key(type(self), 'model')}")
        return self

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long failed jobs wait."""
        return RetryPolicy(self.retry_initial_delay, self.retry_max_delay, self.retry_jitter)


class MaintenanceSettings(Section):
    """Recovery, promotion and retention, wherever they are hosted."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_MAINTENANCE_")

    interval: PositiveDuration = timedelta(seconds=2)
    """how often the local stack and `docgrid maintain` run maintenance"""
    safety_net_interval: PositiveDuration = timedelta(seconds=30)
    """how often a worker runs maintenance, in case nobody else does"""
    batch: Annotated[int, Field(ge=1, le=10_000)] = 500
    """most jobs of each kind in one transaction of recovery"""
    retention_interval: PositiveDuration = timedelta(hours=1)
    """how often what is too old is deleted"""
    keep_indexed: PositiveDuration = timedelta(days=7)
    """age at which INDEXED jobs are deleted, with attempts and events"""
    keep_failed: PositiveDuration = timedelta(days=30)
    """age at which FAILED and CANCELED jobs are deleted, with attempts and events"""
    keep_workers: PositiveDuration = timedelta(days=7)
    """age at which rows of ended workers are deleted, once nothing refers to them"""


class ChunkingSettings(Section):
    """How text is cut; Unicode code points."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_CHUNKING_")

    size: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """longest chunk"""
    overlap: Annotated[int, Field(ge=0)] = 200
    """how much of a chunk the next one of its section repeats"""
    max_chunks: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """most chunks of one document"""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        _require_less(self, "overlap", "size")
        return self


class ParsingSettings(Section):
    """Limits on what is read of a document."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_PARSING_")

    max_file_size: Annotated[int, Field(ge=1)] = 50_000_000
    """largest document, in bytes"""


class EmbeddingSettings(Section):
    """Which provider turns text into vectors, and how it is called."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_EMBEDDING_")

    provider: Literal["openai", "builtin"] = "openai"
    """`openai`: any server with OpenAI's embeddings call; `builtin`: a small model in process, for tests"""
    base_url: str = ""
    """root of the server, without `/v1`; required for `openai`"""
    api_key: SecretStr | None = None
    """sent as a bearer token"""
    batch_size: Annotated[int, Field(ge=1, le=2048)] = 32
    """most texts in one request"""
    max_code_points: Annotated[int, Field(ge=1)] = 100_000
    """most code points in one request"""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    """most requests at once of one process"""
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    """wait for a connection"""
    read_timeout: PositiveDuration = timedelta(seconds=30)
    """wait for the next part of an answer"""

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

    endpoint: Annotated[str, AfterValidator(_host_and_port)]
    """`host:port`, without scheme"""
    region: str = "us-east-1"
    """region that requests are signed for"""
    secure: bool = True
    """TLS"""
    access_key: SecretStr
    """access key id"""
    secret_key: SecretStr
    """secret access key"""
    bucket: Annotated[str, Field(min_length=3, max_length=63)] = "docgrid"
    """bucket for what DocGrid uploads"""
    connect_timeout: PositiveDuration = timedelta(seconds=3)
    """wait for a connection"""
    read_timeout: PositiveDuration = timedelta(seconds=15)
    """wait for the next part of an answer"""


class LogSettings(Section):
    """What is logged and how."""

    model_config = SettingsConfigDict(env_prefix="DOCGRID_LOG_")

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """least severity that is shown"""
    format: Literal["json", "console"] = "json"
    """`console` is for a person"""
    termination_file: Path = Path("/dev/termination-log")
    """file, if there is one, for the reason of a failed start: a pod's status shows it"""


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
