"""The provider `openai`: any server with OpenAI's embeddings call (vLLM, TEI, Ollama, Infinity, OpenAI).

`POST {base_url}/v1/embeddings` with `model` and `input`. What a model needs beyond that stands in its
`config`: `{"input_type": true}` sends the purpose as a field of that name, `{"passage_prefix": "passage: ",
"query_prefix": "query: "}` writes it before each text.
"""

import json
import threading
import time
from collections.abc import Sequence
from functools import partial

import httpx
import numpy as np

from docgrid_core.errors import ProviderUnavailable, SettingsError, VectorInvalid
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import EmbeddingSettings
from docgrid_core.vectors import Vectors
from docgrid_pipeline.embeddings.answers import failure, read_answer
from docgrid_pipeline.embeddings.batches import run_all, split
from docgrid_pipeline.embeddings.provider import Purpose
from docgrid_pipeline.embeddings.sockets import OpenSockets

_KEEP_ALIVE = 2.0
"""Seconds that an idle connection is kept: less than the servers do, so that none closes as we send."""

_READS_PER_ANSWER = 10
"""Read time-outs that a whole answer may take: a server that drips bytes must not hold a slot for ever."""

_BYTES_PER_NUMBER = 64
_BYTES_PER_ANSWER = 65_536


class OpenAIProvider:
    """Embeds with one model of one server, with at most `concurrency` calls at once in this process."""

    def __init__(self, settings: EmbeddingSettings, model: EmbeddingModel) -> None:
        self._settings = settings
        self._model = model
        self._places = threading.Semaphore(settings.concurrency)
        self._sockets = OpenSockets()
        self._url = _build_url(settings.base_url)
        self._client = _build_client(settings)

    def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Embed `texts`: the batches of one call run side by side as far as places are free."""
        prefix = self._model.config.get(f"{purpose}_prefix", "")
        batches = split(
            [prefix + text for text in texts],
            max_count=self._settings.batch_size,
            max_code_points=self._settings.max_code_points,
        )
        tasks = [partial(self._embed_batch, batch, purpose=purpose) for batch in batches]
        parts = run_all(tasks, lanes=self._settings.concurrency)
        return np.concatenate([np.empty((0, self._model.dimension), np.float32), *parts])

    def close(self) -> None:
        """End all calls and connections; a later call fails as unavailable."""
        self._sockets.close()
        self._client.close()

    def _embed_batch(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        body = self._request_body(texts, purpose=purpose)
        limit = _BYTES_PER_ANSWER + _BYTES_PER_NUMBER * self._model.dimension * len(texts)
        with self._places:
            answer = self._post(body, limit=limit)
        return read_answer(answer, count=len(texts), model=self._model)

    def _request_body(self, texts: Sequence[str], *, purpose: Purpose) -> bytes:
        request: dict[str, object] = {"model": self._model.name, "input": list(texts)}
        if self._model.config.get("input_type"):
            request["input_type"] = purpose.value
        return json.dumps(request).encode("ascii")

    def _post(self, body: bytes, *, limit: int) -> bytes:
        if self._sockets.closed:
            raise ProviderUnavailable("closed")
        try:
            with self._client.stream(
                "POST", self._url, content=body, extensions={"trace": self._sockets.trace}
            ) as response:
                if not response.is_success:
                    raise failure(response.status_code, response.headers)
                return self._read(response, limit=limit)
        except httpx.HTTPError as error:
            # From None: httpx's error carries the request, and with it the texts.
            raise ProviderUnavailable(type(error).__name__) from None
        except RuntimeError:
            if not self._sockets.closed:
                raise
            raise ProviderUnavailable("closed") from None  # the client was closed since we looked

    def _read(self, response: httpx.Response, *, limit: int) -> bytes:
        deadline = time.monotonic() + _READS_PER_ANSWER * self._settings.read_timeout.total_seconds()
        body = bytearray()
        for part in response.iter_bytes():
            body += part
            if len(body) > limit:
                raise VectorInvalid("the answer is longer than the vectors asked for")
            if time.monotonic() > deadline:
                raise ProviderUnavailable("the answer takes too long")
        return bytes(body)


def _build_url(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(f"{base_url.rstrip('/')}/v1/embeddings")
    except httpx.InvalidURL:
        url = httpx.URL()
    if not url.host:
        raise SettingsError(f"DOCGRID_EMBEDDING_BASE_URL={base_url}: must be the address of a server")
    return url


def _build_client(settings: EmbeddingSettings) -> httpx.Client:
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if settings.api_key is not None:
        headers["authorization"] = f"Bearer {_header_value(settings.api_key.get_secret_value())}"
    return httpx.Client(
        headers=headers,
        timeout=httpx.Timeout(
            settings.read_timeout.total_seconds(), connect=settings.connect_timeout.total_seconds()
        ),
        limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE),  # how many are open, the places decide
        trust_env=False,
    )


def _header_value(key: str) -> str:
    # A Secret that was made from a file often ends in a line feed, which no header can hold.
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("DOCGRID_EMBEDDING_API_KEY=(secret): must be printable ASCII, without a line end")
    return key
