"""The port behind which every embedding provider stands."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from docgrid_core.vectors import Vectors


class Purpose(StrEnum):
    """What a text is embedded for: many models treat what is stored and what is asked differently."""

    PASSAGE = "passage"
    QUERY = "query"


class EmbeddingProvider(Protocol):
    """Turns texts into vectors of one model; any number of threads may call it at once.

    Its border: it knows no job and retries nothing. Neither a text nor an answer is in its errors or logs.
    """

    def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Return one valid vector for each text, in the order of the texts.

        Raises `ProviderUnavailable` (try again), `ProviderRefused` (do not) or `VectorInvalid`.
        """

    def close(self) -> None:
        """End the provider; calls that are in flight in other threads fail at once as unavailable."""
