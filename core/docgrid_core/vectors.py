"""What counts as a usable vector, whoever made it: the provider's answer, the store and search ask here."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from docgrid_core.errors import VectorInvalid

Vectors: TypeAlias = NDArray[np.float32]
"""A row for each text: shape (texts, dimension)."""


def check_vectors(values: Any, *, count: int, dimension: int) -> Vectors:
    """Return `values` as float32 of shape (count, dimension).

    Raises `VectorInvalid` when the shape differs, a number is not finite or a row has no length.
    """
    try:
        numbers = np.asarray(values)
    except ValueError:
        raise VectorInvalid("the vectors differ in length") from None
    if numbers.shape != (count, dimension):
        raise VectorInvalid(f"shape {numbers.shape} instead of {(count, dimension)}")
    if numbers.dtype.kind not in "fiu":
        raise VectorInvalid("a vector holds something that is not a number")
    # In single precision, as pgvector does it: there 1e-30 in every place is as good as zero.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        vectors = numbers.astype(np.float32)
        squares = np.einsum("ij,ij->i", vectors, vectors)
    unusable = ~(np.isfinite(squares) & (squares > 0))
    if unusable.any():
        raise VectorInvalid(f"vector {int(unusable.argmax())} is not finite or all zero")
    return vectors
