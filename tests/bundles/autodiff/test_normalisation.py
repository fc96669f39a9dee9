"""Rules of normalisations of each row by its own mean and deviation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, number, of, within
from tests.bundles.autodiff.oracle import assert_refused, judge

CASES = [
    *(
        Case(
            f"y = LayerNormalization{attributes}({names})",
            {"x": of("b", 3, 4), "g": of(*dims), "c": of(*dims)},
        )
        for names in ("x, g, c",)
        for attributes, dims in (
            ("", (4,)),
            ("<axis = -1>", (4,)),
            ("<axis = 2, epsilon = 0.1>", (4,)),
            ("<axis = 1>", (3, 4)),
            ("<axis = -2, stash_type = 1>", (3, 4)),
        )
    ),
    Case("y = LayerNormalization(x, g)", {"x": of("b", 4), "g": of(4)}),
    Case(
        "y = LayerNormalization<axis = 0>(w, g, c)",
        {"w": of(3, 4), "g": of(3, 4), "c": of(3, 4), "x": of("b", 1)},
    ),
    Case("y = LayerNormalization(x, g, c)", {"x": of("b", 4), "g": of(4), "c": of(4)}, fixed=("g", "c")),
    Case("y = LayerNormalization(x, g, c)", {"x": of("b", 4), "g": of(4), "c": of(4)}, fixed=("x",)),
    Case("n = LayerNormalization(x, g) y = Mul(n, x)", {"x": of("b", 3, 4), "g": of(4)}),
    *(
        Case(
            f"y = InstanceNormalization{epsilon}(x, g, c)", {"x": of("b", 2, *sizes), "g": of(2), "c": of(2)}
        )
        for epsilon, sizes in (("", (5,)), ("<epsilon = 0.1>", (3, 4)), ("", (2, 2, 3)))
    ),
    Case(
        "y = InstanceNormalization(x, g, c)",
        {"x": of("b", 2, 5), "g": np.ones(2, np.float32), "c": of(2)},
        fixed=("g", "c"),
    ),
    Case("s = Exp(w) y = InstanceNormalization(x, s, c)", {"x": of("b", 2, 5), "w": of(2), "c": of(2)}),
    # Frozen: scale and bias are no parameters, and neither are the statistics.
    *(
        Case(
            "y = BatchNormalization<epsilon = 0.01>(x, g, c, m, v)",
            {"x": of("b", 2, *sizes), "g": of(2), "c": of(2), "m": of(2), "v": within(0.5, 2, 2)},
            fixed=("g", "c", "m", "v"),
        )
        for sizes in ((), (3,), (3, 4), (2, 2, 2))
    ),
    # Frozen statistics, with a scale and a bias that other layers compute.
    *(
        Case(
            "g = Tanh(p) c = Exp(q) y = BatchNormalization(x, g, c, m, v)",
            {"x": of("b", 2, *sizes), "p": of(2), "q": of(2), "m": of(2), "v": within(0.5, 2, 2)},
            fixed=("m", "v"),
        )
        for sizes in ((), (3, 4))
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


ON_EDGES = [
    # A row without deviation.
    Case(
        "y = LayerNormalization(w, g)",
        {"w": np.ones((1, 3), np.float32), "g": number([1, 2, 3]), "x": of("b", 1)},
        expected={"g": 0},
    ),
]


@pytest.mark.parametrize("case", ON_EDGES, ids=str)
def test_gradient_on_an_edge(case: Case) -> None:
    judge(case)


def test_statistics_that_are_read_are_refused() -> None:
    case = Case("n, m = LayerNormalization(x, g) y = Mul(n, m)", {"x": of("b", 4), "g": of(4)})
    assert_refused(case, "mean or deviation is read")
