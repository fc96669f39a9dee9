"""Rules of sums, means, norms and extremes along axes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, ints, number, of, within
from tests.bundles.autodiff.oracle import judge

OPERATORS = [
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]
AXES = ["axes = [1], ", "axes = [-1], ", "axes = [1, 2], ", "axes = [0], ", "axes = [-3, 2], ", ""]


def reduced(operator: str, axes: str, keep: int) -> Case:
    drawn = within(0.5, 2, "b", 3, 4) if operator == "ReduceLogSum" else of("b", 3, 4)
    return Case(f"y = {operator}<{axes}keepdims = {keep}>(x)", {"x": drawn})


CASES = [
    *(
        reduced(operator, axes, keep)
        for operator in [*OPERATORS, "ReduceLogSum"]
        for axes in AXES
        for keep in (0, 1)
    ),
    *(Case(f"y = {operator}(x)", {"x": of("b", 3)}) for operator in OPERATORS),
    *(
        Case(f"y = ReduceSum<keepdims = {keep}>(x, a)", {"x": of("b", 3, 4), "a": ints(*axes)})
        for keep in (0, 1)
        for axes in ((1,), (-1,), (2, 1), (0,), (0, -1))
    ),
    Case("y = ReduceSum(x)", {"x": of("b", 3)}),
    Case("y = ReduceSum<keepdims = 0>(x)", {"x": of("b", 3)}),
    # No axes at all: everything, or nothing.
    *(
        Case(
            f"y = ReduceSum<noop_with_empty_axes = {noop}, keepdims = {keep}>({inputs})",
            {"x": of("b", 3), "a": ints()},
        )
        for noop, inputs in ((0, "x"), (1, "x, a"))
        for keep in (0, 1)
    ),
    Case("y = ReduceMean<axes = [0]>(w)", {"w": of(3), "x": of("b", 1)}),
    Case("y = ReduceMax(w)", {"w": of(), "x": of("b", 1)}),
    # Something smaller follows, so that what comes back is small.
    *(
        Case(
            f"r = {operator}<axes = [2]>(x) y = ReduceMean<axes = [0, 1], keepdims = 0>(r)",
            {"x": within(0.5, 2, "b", 3, 4)},
        )
        for operator in [*OPERATORS, "ReduceLogSum"]
    ),
    # What is small meets an operand that was repeated.
    *(
        Case(
            f"a = Mul(x, w) r = {operator}<axes = [2]>(a) y = ReduceSum(r)",
            {"x": within(0.5, 2, "b", 3, 4), "w": within(0.5, 2, 1, 1)},
        )
        for operator in [*OPERATORS, "ReduceLogSum"]
    ),
    *(Case("y = GlobalAveragePool(x)", {"x": of("b", 2, *sizes)}) for sizes in ((3,), (3, 4), (2, 3, 2))),
    *(Case("y = GlobalMaxPool(x)", {"x": of("b", 2, *sizes)}) for sizes in ((3,), (3, 4), (2, 3, 2))),
    Case("r = GlobalAveragePool(x) y = ReduceSum(r)", {"x": of("b", 2, 3)}),
    # Large values.
    Case("y = ReduceLogSumExp<axes = [1]>(x)", {"x": within(80, 120, "b", 4)}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


TIED = {"w": number([[1, 3, 3], [2, 2, 2]]), "x": of("b", 1)}
ON_EDGES = [
    Case("y = ReduceMax<axes = [1]>(w)", TIED, expected={"w": [[0, 0.5, 0.5], [1 / 3] * 3]}),
    Case("y = ReduceMin<axes = [1]>(w)", TIED, expected={"w": [[1, 0, 0], [1 / 3] * 3]}),
    Case(
        "y = ReduceL2<axes = [1]>(w)", {"w": np.zeros((2, 3), np.float32), "x": of("b", 1)}, expected={"w": 0}
    ),
    Case(
        "y = ReduceL1<axes = [1]>(w)", {"w": np.zeros((2, 3), np.float32), "x": of("b", 1)}, expected={"w": 0}
    ),
    Case(
        "y = GlobalMaxPool(w)",
        {"w": number([[[1, 3, 3], [2, 2, 2]]]), "x": of("b", 1)},
        expected={"w": [[[0, 0.5, 0.5], [1 / 3] * 3]]},
    ),
]


@pytest.mark.parametrize("case", ON_EDGES, ids=str)
def test_gradient_on_an_edge(case: Case) -> None:
    judge(case)
