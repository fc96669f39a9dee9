"""Rules of arithmetic element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, Drawn, number, of, within
from tests.bundles.autodiff.oracle import judge

X = of("b", 3, 4)
# The other operand: the same shape, repeated along some axes, of lower rank, a scalar, repeating x.
OPERANDS = [
    of("b", 3, 4),
    of(4),
    of(3, 1),
    of(1, 3, 4),
    of("b", 1, 4),
    of("b", 1, 1),
    of(),
    of(1),
    of(1, 1, 1, 1),
    of(2, 1, 3, 1),
]


def both_ways(operator: str, *, positive: bool = False) -> list[Case]:
    def drawn(operand: Drawn) -> Drawn:
        return within(0.5, 2, *operand.dims) if positive else operand

    return [
        Case(f"y = {operator}({places})", {"x": drawn(X), "w": drawn(operand)})
        for operand in OPERANDS
        for places in ("x, w", "w, x")
    ]


def of_one(body: str, low: float = -2, high: float = 2) -> Case:
    return Case(body, {"x": within(low, high, "b", 2, 3)})


CASES = [
    *both_ways("Sub"),
    *both_ways("Div", positive=True),
    *both_ways("Pow", positive=True),
    *both_ways("Max"),
    *(case for name in ("Add", "Mul", "Min", "Sum", "Mean") for case in both_ways(name)[2::5]),
    *(Case(f"y = {name}(x, w, v, x)", {"x": X, "w": of(4), "v": of(3, 1)}) for name in ("Sum", "Mean")),
    *(Case(f"y = {name}(x, w, v)", {"x": X, "w": of(4), "v": of(3, 1)}) for name in ("Max", "Min")),
    *(Case(f"y = {name}(x)", {"x": X}) for name in ("Sum", "Mean", "Max", "Min")),
    *(
        Case(f"y = {name}(x, x)", {"x": within(0.5, 2, "b", 3)})
        for name in ("Add", "Sub", "Mul", "Div", "Pow")
    ),
    # Both operands are repeated.
    *(
        Case(f"y = {name}(x, w)", {"x": within(0.5, 2, "b", 3, 1), "w": within(0.5, 2, 1, 4)})
        for name in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")
    ),
    # The batch is not in front, or an operand without it is repeated along it.
    *(
        Case(
            f"t = Transpose<perm = [1, 0]>(x) y = {name}(t, w)",
            {"x": within(0.5, 2, "b", 3), "w": within(0.5, 2, *dims)},
        )
        for name in ("Add", "Mul", "Div", "Pow")
        for dims in ((1,), (3, 1), (2, 3, 1))
    ),
    *(
        Case(f"t = Unsqueeze(x, axes) y = {name}(t, x)", {"x": within(0.5, 2, "b", 3), "axes": np.array([1])})
        for name in ("Add", "Mul", "Div")
    ),
    *(Case(f"y = {name}(w, v)", {"w": of(), "v": of(), "x": of("b", 1)}) for name in ("Add", "Mul", "Max")),
    of_one("y = Neg(x)"),
    of_one("y = Abs(x)"),
    of_one("y = Exp(x)"),
    of_one("y = Log(x)", 0.3, 3),
    of_one("y = Sqrt(x)", 0.3, 3),
    of_one("y = Reciprocal(x)", 0.3, 3),
    of_one("y = Reciprocal(x)", -3, -0.3),
    of_one("y = Erf(x)"),
    of_one("y = Sin(x)"),
    of_one("y = Cos(x)"),
    of_one("y = Identity(x)"),
    of_one("h = Cast<to = 1>(x) y = Mul(h, x)"),
    *(
        Case("y = Pow(x, e)", {"x": within(-2, 2, "b", 3), "e": np.array(e, np.float32)}, fixed=("e",))
        for e in (2, 3, 1, 0, -1, -2, [2], [[[2]]], [2, 3, 1])
    ),
    *(Case("y = Pow(x, e)", {"x": within(-2, 2, "b", 3), "e": np.array(e)}) for e in (2, 3, [3, 2, 1])),
    Case("y = Pow(e, x)", {"x": of("b", 3), "e": np.array(2, np.float32)}, fixed=("e",)),
    *(
        Case(
            f"y = Clip({places})",
            {"x": of("b", 3, 4), "lo": np.array(-0.5, np.float32), "hi": np.array(0.7, np.float32)},
            fixed=("lo", "hi"),
        )
        for places in ("x", "x, lo", 'x, "", hi', "x, lo, hi", "x, hi, lo")
    ),
    # Bounds that are computed.
    Case(
        "lo = ReduceMean<keepdims = 0>(w) hi = ReduceMax<keepdims = 0>(v) y = Clip(x, lo, hi)",
        {"x": of("b", 9), "w": within(-1, 0, 3), "v": within(0, 1, 3)},
    ),
    *(
        Case(f"y = Where({places})", {"c": np.array(c), "x": X, "w": w})
        for places in ("c, x, w", "c, w, x")
        for c in (True, [True, False, True, False], [[True], [False], [True]])
        for w in (of("b", 3, 4), of(4), of(3, 1), of())
    ),
    # The condition is wider than both.
    Case("y = Where(c, w, v)", {"c": np.array([[True], [False]]), "w": of(3), "v": of(), "x": of("b", 1)}),
    Case("z = ReduceMax<axes = [1]>(x) c = Less(x, z) y = Where(c, x, w)", {"x": X, "w": of(3, 1)}),
    *(
        Case(
            f"y = CumSum<exclusive = {e}, reverse = {r}>(x, axis)",
            {"x": of("b", 3, 4), "axis": np.array(axis, kind)},
        )
        for e in (0, 1)
        for r in (0, 1)
        for axis, kind in ((0, np.int64), (1, np.int32), (-1, np.int64))
    ),
    *(Case(f"y = Trilu{upper}(x)", {"x": of("b", 3, 4)}) for upper in ("", "<upper = 0>", "<upper = 1>")),
    *(
        Case(f"y = Trilu<upper = {upper}>(x, k)", {"x": of("b", 3, 4), "k": np.array(k)})
        for upper in (0, 1)
        for k in (-1, 0, 2)
    ),
    Case("y = Trilu(x)", {"x": of("b", 3)}),
    # Several readers, and a chain whose middle is read outside.
    Case("a = Tanh(x) b = Mul(a, x) c = Add(a, b) y = Mul(c, b)", {"x": X}),
    # Where nothing carries a gradient.
    Case("f = Floor(x) s = Sign(x) m = Mul(f, s) y = Mul(m, x)", {"x": X}),
    Case("r = Round(x) c = Ceil(x) a = Add(r, c) y = Mul(a, w)", {"x": X, "w": of(4)}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


ZERO = np.zeros((2, 2), np.float32)
TIED = np.array([[1, 2], [3, 3]], np.float32)
ON_EDGES = [
    Case("y = Abs(w)", {"w": ZERO, "x": of("b", 1)}, expected={"w": 0}),
    # Equal operands share the gradient.
    Case("y = Max(w, v)", {"w": TIED, "v": TIED, "x": of("b", 1)}, expected={"w": 0.5, "v": 0.5}),
    Case("y = Min(w, v, w)", {"w": TIED, "v": TIED, "x": of("b", 1)}, expected={"w": 2 / 3, "v": 1 / 3}),
    Case("y = Max(w, c)", {"w": ZERO, "c": ZERO, "x": of("b", 1)}, fixed=("c",), expected={"w": 0.5}),
    # On the bounds the value is not held back.
    Case(
        "y = Clip(w, lo, hi)",
        {"w": np.array([-1, -2, 1, 2], np.float32), "lo": number(-1), "hi": number(1), "x": of("b", 1)},
        fixed=("lo", "hi"),
        expected={"w": [1, 0, 1, 0]},
    ),
    # The root of what is never negative, as norms are written: Where keeps infinity out.
    Case(
        "r = Relu(w) c = Greater(r, zero) s = Where(c, r, one) q = Sqrt(s) y = Where(c, q, zero)",
        {"w": np.array([-1, 0, 4], np.float32), "zero": number(0), "one": number(1), "x": of("b", 1)},
        fixed=("zero", "one"),
        expected={"w": [0, 0, 0.25]},
    ),
    # An exponent of 0 and a base of 0.
    Case("y = Pow(w, e)", {"w": ZERO, "e": number(2), "x": of("b", 1)}, fixed=("e",), expected={"w": 0}),
    Case("y = Pow(w, e)", {"w": ZERO, "e": number(1), "x": of("b", 1)}, fixed=("e",), expected={"w": 1}),
    Case("y = Pow(w, e)", {"w": ZERO, "e": number(0), "x": of("b", 1)}, fixed=("e",), expected={"w": 0}),
    Case(
        "y = Pow(c, e)",
        {"c": ZERO, "e": np.full(2, 1.5, np.float32), "x": of("b", 1)},
        fixed=("c",),
        expected={"e": 0},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ON_EDGES, ids=str)
def test_gradient_on_an_edge(case: Case) -> None:
    judge(case)
