"""Rules of making a grid finer or coarser."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, number, of
from tests.bundles.autodiff.oracle import assert_refused, judge


def by_scales(attributes: str, sizes: tuple[int, ...], *scales: float) -> Case:
    tensors = {"x": of("b", 2, *sizes), "s": number([1, 1, *scales])}
    return Case(f'y = Resize<{attributes}>(x, "", s)', tensors, ("s",), rows=(2,))


GRIDS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDED = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
CASES = [
    *(
        by_scales(
            f'mode = "nearest", coordinate_transformation_mode = "{grid}", nearest_mode = "{rounded}"', *form
        )
        for grid, rounded in (
            ("asymmetric", "floor"),
            ("half_pixel", "round_prefer_floor"),
            ("pytorch_half_pixel", "round_prefer_ceil"),
        )
        for form in (((3,), 2), ((3, 4), 2, 3), ((2, 2, 3), 1, 2, 2))
    ),
    *(
        by_scales(
            f'mode = "nearest", coordinate_transformation_mode = "{grid}", nearest_mode = "{rounded}"', *form
        )
        for grid in GRIDS
        for rounded in ROUNDED
        for form in (((4, 3), 1.5, 1), ((4, 5), 0.6, 2))
    ),
    by_scales('mode = "nearest"', (3, 4), 2, 2),
    *(
        by_scales(f'mode = "linear", coordinate_transformation_mode = "{grid}"', *form)
        for grid in GRIDS
        for form in (((3, 4), 2, 2), ((4, 5), 1.5, 2.2), ((4, 6), 0.5, 0.7))
    ),
    # Sizes that are whole multiples, from scales that are not.
    by_scales('mode = "linear"', (3, 3), 2.2, 2.2),
    by_scales('mode = "nearest"', (3, 3), 2.2, 2.2),
    by_scales(
        'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
        (3, 4),
        2.3,
        2,
    ),
    Case('y = Resize<mode = "linear">(x, "", s)', {"x": of("b", 4), "s": number([1, 2])}, ("s",), rows=(2,)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


REFUSED = [
    (by_scales('mode = "cubic"', (4, 4), 2, 2), "mode is cubic"),
    (
        by_scales('mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"', (4, 4), 2, 2),
        "tf_crop_and_resize",
    ),
    (
        Case('y = Resize(x, "", s)', {"x": of("b", 2, 3), "s": np.array([2, 1, 1], np.float32)}, ("s",)),
        "changes the batch",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)
