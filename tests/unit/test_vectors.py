"""Only whole sets of usable vectors pass; what pgvector can not compare is refused."""

from typing import Any

import numpy as np
import pytest

from docgrid_core.errors import VectorInvalid
from docgrid_core.vectors import check_vectors

GOOD = [0.5, -1.0, 2.0]


def test_good_vectors_come_back_as_single_precision() -> None:
    vectors = check_vectors([GOOD, [1, 2, 3]], count=2, dimension=3)
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [GOOD, [1, 2, 3]]


@pytest.mark.parametrize(
    "bad",
    [
        [0, 0, 0],
        [0.0, -0.0, 0.0],
        [1e-30, 1e-30, 1e-30],
        [float("nan"), 1, 1],
        [float("inf"), 1, 1],
        [1e300, 1, 1],
        [1e30, 1e30, 1e30],
        [1, 2],
        [1, 2, 3, 4],
        [],
        None,
        "abc",
        ["1", "2", "3"],
        [None, 1, 2],
        [10**400, 1, 1],
        [[1], [2], [3]],
        {"a": 1},
    ],
)
def test_one_bad_vector_in_the_middle_refuses_the_whole_answer(bad: Any) -> None:
    """Case 26."""
    with pytest.raises(VectorInvalid):
        check_vectors([GOOD, bad, GOOD], count=3, dimension=3)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_vectors_is_refused(count: int) -> None:
    with pytest.raises(VectorInvalid):
        check_vectors([GOOD, GOOD], count=count, dimension=3)


def test_booleans_are_no_vector() -> None:
    with pytest.raises(VectorInvalid):
        check_vectors([[True, True, True]], count=1, dimension=3)
