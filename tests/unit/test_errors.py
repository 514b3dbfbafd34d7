import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from docgrid_core import errors
from docgrid_core.errors import (
    Busy,
    ContentError,
    DatabaseUnavailable,
    DatabaseUnusable,
    DiskFull,
    DocGridError,
    FaultError,
    InternalError,
    ProviderUnavailable,
    RefusedError,
    SettingsError,
    StatementTimeout,
)

BASES = {DocGridError, RefusedError, ContentError, FaultError}
SECRET = "INSERT INTO embeddings VALUES ('canary') at 10.0.0.7:5432"


def classes(of: type[DocGridError] = DocGridError) -> Iterator[type[DocGridError]]:
    yield of
    for subclass in of.__subclasses__():
        yield from classes(subclass)


RAISED = [cls for cls in classes() if cls not in BASES and cls.__module__ == errors.__name__]
FAULTS = [cls for cls in RAISED if issubclass(cls, FaultError) and cls is not DatabaseUnusable]


def test_every_code_belongs_to_one_class() -> None:
    by_code = defaultdict(set)
    for cls in RAISED:
        by_code[cls.code].add(cls)
    shared = {code: owners for code, owners in by_code.items() if len(owners) > 1}
    # To a caller they say the same, "try again" and "internal"; their texts tell an operator which it is.
    assert shared == {
        "COMMON-005": {Busy, DatabaseUnavailable, StatementTimeout},
        "COMMON-006": {DiskFull, InternalError},
    }


@pytest.mark.parametrize("cls", RAISED)
def test_every_class_fixes_its_own_code(cls: type[DocGridError]) -> None:
    assert "code" in vars(cls)
    assert re.fullmatch(r"[A-Z]+(-[A-Z]+)*-\d{3}", cls.code) or cls in {SettingsError, DatabaseUnusable}


@pytest.mark.parametrize("cls", RAISED)
def test_every_class_is_either_a_refusal_or_a_fault(cls: type[DocGridError]) -> None:
    assert cls is SettingsError or issubclass(cls, RefusedError) != issubclass(cls, FaultError)


@pytest.mark.parametrize("cls", FAULTS)
def test_the_text_of_a_fault_is_fixed_and_carries_nothing_from_below(cls: type[FaultError]) -> None:
    error = cls(SECRET)
    assert str(error) == f"{cls.code}: {cls.text}"
    assert SECRET not in repr(error)
    assert SECRET not in str(error.args)
    assert error.detail == SECRET


@pytest.mark.parametrize("cls", FAULTS)
def test_every_fault_has_a_text_of_its_own(cls: type[FaultError]) -> None:
    assert "text" in vars(cls)
    assert cls.text


def test_a_refusal_says_its_code_and_its_reason() -> None:
    assert str(errors.JobNotFound("no job 7")) == "EMBEDDING-JOB-001: no job 7"


def test_a_wrong_setting_is_a_plain_line_without_a_code() -> None:
    assert str(SettingsError("DOCGRID_WORKER_NAME is not set")) == "DOCGRID_WORKER_NAME is not set"


def test_an_unusable_database_says_what_was_found() -> None:
    error = DatabaseUnusable("the schema is at revision 1: run docgrid migrate")
    assert str(error) == "DATABASE-SETUP: the schema is at revision 1: run docgrid migrate"


def test_a_busy_provider_can_name_the_wait_that_it_asked_for() -> None:
    assert ProviderUnavailable("429", retry_after=2.5).retry_after == 2.5
    assert ProviderUnavailable().retry_after is None
