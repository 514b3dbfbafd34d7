"""The builtin provider: real vectors in this process, nothing downloaded, nothing printed."""

import logging
import subprocess
import sys

import numpy as np
import pytest

from docgrid_core.errors import ProviderUnavailable, VectorInvalid
from docgrid_core.jobs import ModelId
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import EmbeddingSettings
from docgrid_pipeline.embeddings import EmbeddingProvider, Purpose, build_provider


def build(dimension: int = 256) -> EmbeddingProvider:
    model = EmbeddingModel(ModelId(1), "builtin", "wordllama", "l2-supercat", dimension, {}, True, True)
    return build_provider(EmbeddingSettings(provider="builtin"), model)


def test_texts_that_mean_the_same_are_nearer_than_others() -> None:
    provider = build()
    vectors = provider.embed(
        ["the worker renews its lease", "a lease is renewed by the worker", "tomatoes need sun"],
        purpose=Purpose.PASSAGE,
    )
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors.shape == (3, 256)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


def test_a_vector_does_not_depend_on_the_other_texts_of_the_call() -> None:
    provider = build()
    texts = [f"text number {number}" + " more" * number for number in range(20)]
    together = provider.embed(texts, purpose=Purpose.PASSAGE)
    alone = np.concatenate([provider.embed([text], purpose=Purpose.QUERY) for text in texts])
    assert np.allclose(together, alone, atol=1e-5)


def test_no_text_is_no_vector() -> None:
    assert build().embed([], purpose=Purpose.PASSAGE).shape == (0, 256)


@pytest.mark.parametrize("texts", [[""], ["good", ""]])
def test_an_empty_text_has_no_direction_and_is_refused(texts: list[str]) -> None:
    with pytest.raises(VectorInvalid):
        build().embed(texts, purpose=Purpose.PASSAGE)


def test_a_model_of_another_dimension_is_refused() -> None:
    with pytest.raises(VectorInvalid):
        build(dimension=384).embed(["text"], purpose=Purpose.PASSAGE)


def test_a_closed_provider_is_unavailable() -> None:
    provider = build()
    provider.close()
    with pytest.raises(ProviderUnavailable):
        provider.embed(["text"], purpose=Purpose.PASSAGE)


def test_loading_it_prints_nothing_and_leaves_logging_as_it_was() -> None:
    program = (
        "import logging; from docgrid_pipeline.embeddings.builtin import _load; _load();"
        "root = logging.getLogger(); assert (root.handlers, root.level) == ([], logging.WARNING), root"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert logging.getLogger().handlers
