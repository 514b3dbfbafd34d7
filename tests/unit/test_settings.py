import os
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from docgrid_core.errors import SettingsError
from docgrid_core.settings import (
    SECTIONS,
    ChunkingSettings,
    DatabaseSettings,
    EmbeddingSettings,
    LogSettings,
    MaintenanceSettings,
    Section,
    StorageSettings,
    WorkerSettings,
    load,
    unknown_keys,
)

CANARY = "s3cr3t-canary"
STORAGE = {
    "DOCGRID_STORAGE_ENDPOINT": "127.0.0.1:9000",
    "DOCGRID_STORAGE_ACCESS_KEY": "docgrid",
    "DOCGRID_STORAGE_SECRET_KEY": CANARY,
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in os.environ:
        if key.startswith("DOCGRID_"):
            monkeypatch.delenv(key)


def refusal(section: type[Section], monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[str]:
    """Return the lines that say why these variables are refused."""
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(SettingsError) as refused:
        load(section)
    return str(refused.value).splitlines()


def test_defaults_are_those_that_are_documented() -> None:
    worker = load(WorkerSettings)
    assert worker.polling_interval == timedelta(seconds=1)
    assert worker.idle_max_polling_interval == timedelta(seconds=10)
    assert worker.max_concurrency == 2
    assert worker.lease_duration == timedelta(minutes=5)
    assert worker.lease_renewal_interval == timedelta(minutes=1)
    assert worker.heartbeat_interval == timedelta(seconds=10)
    assert worker.dead_threshold == timedelta(seconds=30)
    assert worker.shutdown_grace_period == timedelta(seconds=30)
    assert worker.retry_initial_delay == timedelta(seconds=10)
    assert worker.retry_max_delay == timedelta(minutes=5)
    assert worker.retry_jitter == 0.2
    assert worker.max_deferral == timedelta(hours=24)
    assert load(MaintenanceSettings).interval == timedelta(seconds=2)
    assert load(MaintenanceSettings).batch == 500
    assert (load(ChunkingSettings).size, load(ChunkingSettings).overlap) == (1000, 200)


def test_a_setting_is_read_by_its_full_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCGRID_WORKER_POLLING_INTERVAL", "1m30s")
    monkeypatch.setenv("DOCGRID_WORKER_MAX_CONCURRENCY", "7")
    monkeypatch.setenv("docgrid_worker_idle_max_polling_interval", "2m")
    settings = load(WorkerSettings)
    assert settings.polling_interval == timedelta(seconds=90)
    assert settings.idle_max_polling_interval == timedelta(minutes=2)
    assert settings.max_concurrency == 7


def test_what_the_caller_passes_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCGRID_WORKER_NAME", "from-environment")
    assert load(WorkerSettings, name="from-caller").name == "from-caller"


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCGRID_WORKER_MAX_CONCURRENCY", "")
    assert load(WorkerSettings).max_concurrency == 2


def test_settings_can_not_be_changed_once_read() -> None:
    settings = load(WorkerSettings)
    with pytest.raises(ValidationError, match="frozen"):
        settings.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("section", "key", "value", "rule"),
    [
        (WorkerSettings, "DOCGRID_WORKER_POLLING_INTERVAL", "0", "must be greater than 0"),
        (WorkerSettings, "DOCGRID_WORKER_POLLING_INTERVAL", "5", "must be a duration like 30s, 5m or 1h30m"),
        (WorkerSettings, "DOCGRID_WORKER_SHUTDOWN_GRACE_PERIOD", "-1s", "must be a duration like"),
        (WorkerSettings, "DOCGRID_WORKER_MAX_CONCURRENCY", "0", "must be 1 or more"),
        (WorkerSettings, "DOCGRID_WORKER_MAX_CONCURRENCY", "257", "must be 256 or less"),
        (WorkerSettings, "DOCGRID_WORKER_MAX_CONCURRENCY", "many", "must be a whole number"),
        (WorkerSettings, "DOCGRID_WORKER_MAX_CONCURRENCY", "1.5", "must be a whole number"),
        (WorkerSettings, "DOCGRID_WORKER_RETRY_JITTER", "1.1", "must be 1.0 or less"),
        (WorkerSettings, "DOCGRID_WORKER_RETRY_JITTER", "nan", "must be a number"),
        (WorkerSettings, "DOCGRID_WORKER_RETRY_JITTER", "some", "must be a number"),
        (WorkerSettings, "DOCGRID_WORKER_HEALTH_PORT", "65536", "must be 65535 or less"),
        (WorkerSettings, "DOCGRID_WORKER_NAME", "x" * 201, "must have 200 characters or less"),
        (MaintenanceSettings, "DOCGRID_MAINTENANCE_BATCH", "0", "must be 1 or more"),
        (LogSettings, "DOCGRID_LOG_LEVEL", "LOUD", "must be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_its_rule(
    section: type[Section], key: str, value: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = refusal(section, monkeypatch, **{key: value})
    assert line.startswith(f"{key}={value}: {rule}")


@pytest.mark.parametrize(
    ("section", "environment", "line"),
    [
        (
            WorkerSettings,
            {"DOCGRID_WORKER_LEASE_DURATION": "1m", "DOCGRID_WORKER_LEASE_RENEWAL_INTERVAL": "60s"},
            "DOCGRID_WORKER_LEASE_RENEWAL_INTERVAL=1m must be less than DOCGRID_WORKER_LEASE_DURATION=1m",
        ),
        (
            WorkerSettings,
            {"DOCGRID_WORKER_HEARTBEAT_INTERVAL": "30s"},
            "DOCGRID_WORKER_HEARTBEAT_INTERVAL=30s must be less than DOCGRID_WORKER_DEAD_THRESHOLD=30s",
        ),
        (
            WorkerSettings,
            {"DOCGRID_WORKER_POLLING_INTERVAL": "1m"},
            "DOCGRID_WORKER_POLLING_INTERVAL=1m must be at most DOCGRID_WORKER_IDLE_MAX_POLLING_INTERVAL=10s",
        ),
        (
            WorkerSettings,
            {"DOCGRID_WORKER_RETRY_MAX_DELAY": "9s"},
            "DOCGRID_WORKER_RETRY_INITIAL_DELAY=10s must be at most DOCGRID_WORKER_RETRY_MAX_DELAY=9s",
        ),
        (
            WorkerSettings,
            {"DOCGRID_WORKER_MODEL_VERSION": "2"},
            "DOCGRID_WORKER_MODEL_VERSION=2 needs DOCGRID_WORKER_MODEL",
        ),
        (
            ChunkingSettings,
            {"DOCGRID_CHUNKING_OVERLAP": "1000"},
            "DOCGRID_CHUNKING_OVERLAP=1000 must be less than DOCGRID_CHUNKING_SIZE=1000",
        ),
        (
            EmbeddingSettings,
            {"DOCGRID_EMBEDDING_BASE_URL": "127.0.0.1:8080"},
            (
                "DOCGRID_EMBEDDING_BASE_URL=127.0.0.1:8080 must be an http:// or https:// address"
                " when DOCGRID_EMBEDDING_PROVIDER=openai"
            ),
        ),
    ],
)
def test_a_rule_between_two_settings_names_both(
    section: type[Section], environment: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(section, monkeypatch, **environment) == [line]


def test_equal_bounds_are_allowed_where_the_rule_says_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCGRID_WORKER_POLLING_INTERVAL", "10s")
    assert load(WorkerSettings).polling_interval == load(WorkerSettings).idle_max_polling_interval


def test_all_wrong_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = refusal(
        WorkerSettings, monkeypatch, DOCGRID_WORKER_MAX_CONCURRENCY="0", DOCGRID_WORKER_LEASE_DURATION="soon"
    )
    assert [line.partition("=")[0] for line in lines] == [
        "DOCGRID_WORKER_MAX_CONCURRENCY",
        "DOCGRID_WORKER_LEASE_DURATION",
    ]


def test_a_missing_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(DatabaseSettings, monkeypatch) == ["DOCGRID_DATABASE_URL is not set: it is required"]


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "127.0.0.1:9000/docs", "local host:9000"])
def test_an_endpoint_is_host_and_port_alone(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = refusal(StorageSettings, monkeypatch, **STORAGE | {"DOCGRID_STORAGE_ENDPOINT": endpoint})
    assert line == f"DOCGRID_STORAGE_ENDPOINT={endpoint}: must be host:port, without scheme and path"


def test_the_builtin_provider_needs_no_address() -> None:
    assert load(EmbeddingSettings, provider="builtin").base_url == ""


def test_no_secret_is_in_a_message_or_a_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in STORAGE.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("DOCGRID_DATABASE_URL", f"postgresql://docgrid:{CANARY}@127.0.0.1/docgrid")
    for settings in (load(StorageSettings), load(DatabaseSettings)):
        assert CANARY not in f"{settings!r} {settings} {settings.model_dump()}"
    with pytest.raises(SettingsError) as refused:
        load(StorageSettings, secret_key=[CANARY])
    assert str(refused.value).startswith("DOCGRID_STORAGE_SECRET_KEY=(secret): ")
    assert CANARY not in str(refused.value)


def test_a_refusal_carries_no_validation_error_with_the_values_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCGRID_WORKER_MAX_CONCURRENCY", "0")
    with pytest.raises(SettingsError) as refused:
        load(WorkerSettings)
    assert refused.value.__context__ is None
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("password", ["p@ss", "50%", "a:b/c", "ü ", "'\"\\"])
def test_a_secret_may_hold_any_character(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in (STORAGE | {"DOCGRID_STORAGE_SECRET_KEY": password}).items():
        monkeypatch.setenv(key, value)
    assert load(StorageSettings).secret_key.get_secret_value() == password


def test_a_misspelt_variable_of_a_section_is_noticed() -> None:
    environment: dict[str, Any] = {
        "DOCGRID_WORKER_MAX_CONCURENCY": "3",
        "docgrid_worker_max_concurrency": "3",
        "DOCGRID_LOG_LEVEL": "INFO",
        "PATH": "/bin",
    }
    assert unknown_keys(environment) == ["DOCGRID_WORKER_MAX_CONCURENCY"]


def test_no_two_sections_share_a_key() -> None:
    keys = [
        f"{section.model_config['env_prefix']}{name}" for section in SECTIONS for name in section.model_fields
    ]
    assert len(keys) == len(set(keys))
    assert all(section.__doc__ for section in SECTIONS)
