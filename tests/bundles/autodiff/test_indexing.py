"""Rules of picking and placing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, Drawn, ints, number, of
from tests.bundles.autodiff.oracle import assert_refused, judge


def gathered(x: Drawn, axis: int, indices: Any, kind: type = np.int64) -> Case:
    tensors = {"w": x, "i": np.array(indices, kind), "x": of("b", 1)}
    return Case(f"y = Gather<axis = {axis}>(w, i)", tensors)


def placed(operator: str, x: Drawn, indices: Any, updates: Drawn, attributes: str = "") -> Case:
    return Case(f"y = {operator}{attributes}(x, i, u)", {"x": x, "i": np.array(indices), "u": updates})


CASES = [
    # One index, each once, some several times; in any form and along any axis.
    *(
        gathered(of("b", 3, 4), axis, index)
        for axis in (1, 2, -1)
        for index in (0, 2, -1, [1], [2, 0, 1], [0, 0, 2], [[0, -1], [1, 1]])
    ),
    *(gathered(of(5, 3), 0, index) for index in (0, -2, [4], [4, 3, 2, 1, 0], [1, 1, 1], [[0, 4], [2, 0]])),
    gathered(of(4), 0, 2),
    gathered(of(4), 0, [2, 2]),
    gathered(of("b", 3), 1, [0, 2], np.int32),
    gathered(of("b", 3), 1, 1, np.int32),
    # From the batch.
    gathered(of("b", 3), 0, 0),
    gathered(of("b", 3), 0, [0, 0, -1]),
    gathered(of(3, "b"), 1, 0),
    gathered(of(2, "b", 3), 1, [0, 0]),
    # A table that rows of the batch pick from.
    Case("n = Cast<to = 7>(x) y = Gather(w, n)", {"x": Drawn(("b", 3), 0, 4.9), "w": of(5, 2)}, fixed=("x",)),
    Case(
        "a = Gather(w, i) c = Gather(w, j) y = Add(a, c)",
        {"w": of(3, 2), "i": ints(0, 1), "j": ints(1, 1), "x": of("b", 1)},
    ),
    *(
        Case(
            f"y = GatherElements<axis = {axis}>(w, i)", {"w": of(3, 4), "i": np.array(index), "x": of("b", 1)}
        )
        for axis, index in (
            (0, [[0, 2, 1, 0], [0, 0, -1, 2]]),
            (1, [[3, 0], [1, 1], [-1, 2]]),
            (-1, [[0], [1], [1]]),
        )
    ),
    Case("v, i = TopK<axis = 1>(x, k) y = GatherElements<axis = 1>(x, i)", {"x": of("b", 5), "k": ints(2)}),
    *(
        Case(f"y, i = TopK<axis = {axis}, largest = {largest}>(x, k)", {"x": of("b", 4, 5), "k": ints(k)})
        for axis in (1, -1)
        for largest in (0, 1)
        for k in (1, 3)
    ),
    Case("y, i = TopK(x, k) ", {"x": of("b", 5), "k": ints(2)}),
    *(
        Case("y = GatherND(w, i)", {"w": of(3, 4, 2), "i": np.array(index), "x": of("b", 1)})
        for index in ([[0, 1], [2, 3], [0, 1]], [[2], [0]], [[0, 1, 1]], [0, 1], [[[-1, 0]], [[1, -1]]])
    ),
    *(
        placed(operator, x, index, updates, f"<{axis}{reduction}>")
        for reduction in ('reduction = "none"', 'reduction = "add"')
        for operator, x, index, updates, axis in (
            ("ScatterElements", of(4, 3), [[1, 0, 2], [3, 2, 0]], of(2, 3), ""),
            ("ScatterElements", of(2, 5), [[1, 0, -1], [3, 2, 0]], of(2, 3), "axis = 1, "),
            ("ScatterElements", of(2, 5), [[1, 0, -1], [3, 2, 0]], of(2, 3), "axis = -1, "),
            ("ScatterND", of(4, 3), [[1], [3]], of(2, 3), ""),
            ("ScatterND", of(4, 3), [[1, 2], [-1, 0]], of(2), ""),
            ("ScatterND", of(4, 3), [2], of(3), ""),
        )
    ),
    *(
        Case(f'y = {op}<reduction = "add">(x, i, u)', {"x": of(4), "i": np.array(i), "u": of(3)})
        for op, i in (("ScatterElements", [1, 1, 2]), ("ScatterND", [[1], [1], [2]]))
    ),
    *(
        Case(f"y = {op}(w, i, u)", {"w": of(4), "i": np.array(i), "u": of(2), "x": of("b", 1)}, fixed=fixed)
        for op, i in (("ScatterElements", [1, 2]), ("ScatterND", [[1], [2]]))
        for fixed in (("w",), ("u",))
    ),
    Case(
        "s = Shape(x) z = ConstantOfShape(s) y = ScatterElements<axis = 1>(z, i, u)",
        {"x": of("b", 4), "i": np.array([[0, 2]]), "u": of(1, 2)},
        rows=(1,),
        fixed=("x",),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


BODY = 'y = {}<reduction = "{}">(x, i, u)'
REFUSED = [
    *(
        (
            Case(BODY.format(op, reduction), {"x": of(4), "i": np.array(i), "u": of(2)}, fixed=fixed),
            f"reduction is {reduction}",
        )
        for op, i in (("ScatterElements", [1, 2]), ("ScatterND", [[1], [2]]))
        for reduction in ("mul",)
        for fixed in ((), ("x",), ("u",))
    ),
    (Case("y = GatherND<batch_dims = 1>(x, i)", {"x": of(2, 3), "i": np.array([[1], [0]])}), "batch_dims"),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)


def test_one_of_equal_values_takes_the_gradient() -> None:
    judge(
        Case(
            "y, i = TopK(w, k)",
            {"w": number([2, 2, 1]), "k": ints(1), "x": of("b", 1)},
            expected={"w": [1, 0, 0]},
        )
    )
