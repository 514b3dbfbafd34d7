"""The provider `builtin`: the static model of the `wordllama` wheel, in this process. For tests and trials.

256 dimensions, English, a thousand chunks a second; its weights are in the wheel, nothing is downloaded.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docgrid_core.errors import ProviderUnavailable, SettingsError
from docgrid_core.records import EmbeddingModel
from docgrid_core.vectors import Vectors, check_vectors
from docgrid_pipeline.embeddings.batches import split
from docgrid_pipeline.embeddings.provider import Purpose

_BATCH = 8
"""Texts at once: the model pads all of them to the longest, at a kilobyte a token."""

_MAX_CODE_POINTS = 100_000


class BuiltinProvider:
    """Embeds with the static model; passages and queries alike."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model
        self._closed = False
        self._engine = _load()

    def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:  # noqa: ARG002 - the port's signature
        """Embed `texts`; one without any known token has no direction and is `VectorInvalid`."""
        parts = [np.empty((0, self._model.dimension), np.float32)]
        for batch in split(texts, max_count=_BATCH, max_code_points=_MAX_CODE_POINTS):
            if self._closed:
                raise ProviderUnavailable("closed")
            vectors = self._engine.embed(list(batch))
            parts.append(check_vectors(vectors, count=len(batch), dimension=self._model.dimension))
        return np.concatenate(parts)

    def close(self) -> None:
        """Let calls in flight end after their present batch."""
        self._closed = True


def _load() -> Any:
    # The import calls logging.basicConfig, which leaves a root logger alone that has a handler.
    silence = logging.NullHandler()
    logging.getLogger().addHandler(silence)
    try:
        import wordllama  # type: ignore[import-untyped]
    except ImportError:
        raise SettingsError(
            "DOCGRID_EMBEDDING_PROVIDER=builtin: needs the package wordllama (docgrid[local])"
        ) from None
    finally:
        logging.getLogger().removeHandler(silence)
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
