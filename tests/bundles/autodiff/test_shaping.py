"""Rules of reshaping, joining, splitting, cutting and repeating."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, Drawn, ints, number, of
from tests.bundles.autodiff.oracle import assert_refused, judge

FAR = 2**31 - 1
FARTHEST = 2**63 - 1


def shaped(body: str, x: Drawn, **tensors: object) -> Case:
    return Case(body, {"x": x, **tensors})


def cut(x: Drawn, starts: list[int], ends: list[int], *rest: list[int], kind: type = np.int64) -> Case:
    names = ["starts", "ends", "axes", "steps"]
    bounds: list[Any] = [np.array(values, kind) for values in (starts, ends, *rest)]
    tensors = dict(zip(names, bounds, strict=False))
    return shaped(f"y = Slice(x, {', '.join(tensors)})", x, **tensors)


X = of("b", 4, 5)
CASES = [
    *(
        shaped("y = Reshape(x, s)", X, s=ints(*sizes))
        for sizes in ((-1, 20), (0, -1), (0, 2, 10), (-1, 4), (0, 0, 5, 1), (-1,), (4, -1, 5), (20, -1))
    ),
    shaped("d = Shape<start = 0, end = 1>(x) s = Concat<axis = 0>(d, r) y = Reshape(x, s)", X, r=ints(5, 4)),
    shaped("y = Reshape(w, s)", of("b", 1), w=of(), s=ints(1, 1)),
    shaped("y = Reshape(w, s)", of("b", 1), w=of(1, 1), s=np.zeros(0, np.int64)),
    *(
        shaped(f"y = Flatten{axis}(x)", X)
        for axis in ("", "<axis = 0>", "<axis = 2>", "<axis = 3>", "<axis = -1>")
    ),
    *(shaped(f"y = Transpose{perm}(x)", X) for perm in ("", "<perm = [0, 2, 1]>", "<perm = [2, 0, 1]>")),
    shaped("y = Squeeze(x, a)", of("b", 1, 3, 1), a=ints(1)),
    shaped("y = Squeeze(x, a)", of("b", 1, 3, 1), a=ints(-1, 1)),
    shaped("y = Squeeze(w)", of("b", 1), w=of(1, 3, 1)),
    shaped("y = Squeeze(w)", of("b", 1), w=of(1, 1)),
    shaped("y = Unsqueeze(x, a)", of("b", 3), a=ints(0)),
    shaped("y = Unsqueeze(x, a)", of("b", 3), a=ints(-1, 1)),
    *(
        Case(f"y = Concat<axis = {axis}>(x, w, x)", {"x": of("b", 3, 4), "w": w})
        for axis, w in ((1, of("b", 2, 4)), (-1, of("b", 3, 1)), (2, of("b", 3, 2)))
    ),
    Case("y = Concat<axis = 0>(w, v)", {"w": of(2, 3), "v": of(1, 3), "x": of("b", 1)}),
    Case("y = Concat<axis = 1>(x, c)", {"x": of("b", 3), "c": of("b", 2)}, fixed=("c",)),
    Case("y = Concat<axis = 1>(x)", {"x": of("b", 3)}),
    # Along the batch.
    Case("y = Concat<axis = 0>(x, t, w)", {"x": of("b", 3), "t": of("b", 3), "w": of(2, 3)}),
    # Parts that nothing reads, or that are read twice.
    *(
        shaped(f"a, c, d = Split<axis = {axis}>(x, s) e = Mul(a, d) y = Mul(e, a)", of("b", 6, 6), s=ints(*s))
        for axis, s in ((1, (2, 2, 2)), (-1, (1, 4, 1)))
    ),
    shaped("a, c = Split<axis = -1>(x) y = Add(a, c)", of("b", 4)),
    shaped("a, c = Split<axis = -1>(x) y = Tanh(c)", of("b", 4)),
    Case("a, c = Split(w) y = Mul(a, c)", {"w": of(4, 2), "x": of("b", 1)}),
    cut(X, [1], [3], [1]),
    cut(X, [1, 0], [3, 4], [1, 2]),
    cut(X, [-3], [-1], [-1]),
    cut(X, [0], [FAR], [2]),
    cut(X, [2], [FARTHEST], [-1]),
    cut(X, [-100], [2], [1]),
    cut(X, [0], [5], [2], [2]),
    cut(X, [1], [5], [2], [3]),
    cut(X, [-1], [-FARTHEST], [2], [-1]),
    cut(X, [3], [0], [1], [-2]),
    cut(X, [3, -1], [0, -6], [1, 2], [-1, -2]),
    cut(X, [1, 0], [FAR, 5], [1, 2], [1, 2]),
    cut(X, [1], [3], [1], kind=np.int32),
    # The batch is not cut, but it is named.
    cut(X, [0, 1], [FAR, 3], [0, 1]),
    cut(X, [0, 1, 0], [FARTHEST, 3, 2]),
    Case("y = Slice(w, s, e)", {"w": of(4, 3), "s": ints(1), "e": ints(3), "x": of("b", 1)}),
    # Steps without axes.
    Case(
        'y = Slice(w, s, e, "", steps)',
        {"w": of(5, 6), "s": ints(0, 1), "e": ints(5, 6), "steps": ints(2, 2), "x": of("b", 1)},
    ),
    *(
        shaped(f"y = Pad{mode}(x, p)", X, p=ints(*pads))
        for mode in ("", '<mode = "constant">', '<mode = "reflect">', '<mode = "edge">')
        for pads in ((0, 1, 2, 0, 2, 0), (0, 0, 3, 0, 0, 1))
    ),
    shaped("y = Pad(x, p)", X, p=ints(0, -1, 1, 0, 0, -2)),
    shaped('y = Pad<mode = "edge">(x, p)', of("b", 3), p=ints(0, 2, 0, 0)),
    shaped('y = Pad<mode = "reflect">(x, p)', of("b", 4, 4, 4), p=ints(0, 0, 2, 3, 0, 0, 1, 0)),
    Case("y = Pad(x, p, v)", {"x": X, "p": ints(0, 1, 0, 0, 0, 2), "v": number(3)}, fixed=("v",)),
    *(
        Case("y = Expand(w, s)", {"w": w, "s": ints(*s), "x": of("b", 1)})
        for w, s in (
            (of(3, 1), (3, 4)),
            (of(4), (2, 3, 4)),
            (of(), (2, 3)),
            (of(3, 1), (1, 1)),
            (of(1, 4), (3, 1)),
        )
    ),
    Case("s = Shape(x) y = Expand(w, s)", {"w": of(4), "x": of("b", 3, 4)}, fixed=("x",)),
    Case("s = Shape(x) y = Expand(w, s)", {"w": of(1, 3, 1), "x": of("b", 3, 4)}, fixed=("x",)),
    shaped("y = Expand(x, s)", of("b", 1, 3), s=ints(1, 4, 1)),
    shaped("y = Expand(x, s)", of("b", 3), s=ints(2, 1, 1)),
    *(
        shaped("y = Tile(x, r)", of("b", 2, 3), r=ints(*times))
        for times in ((1, 2, 3), (1, 1, 1), (1, 1, 4), (2, 1, 1), (3, 2, 1))
    ),
    Case("y = Tile(w, r)", {"w": of(3), "r": ints(2), "x": of("b", 1)}),
    *(
        shaped(f"y = DepthToSpace<blocksize = 2{mode}>(x)", of("b", 8, 2, 3))
        for mode in ("", ', mode = "DCR"', ', mode = "CRD"')
    ),
    shaped("y = SpaceToDepth<blocksize = 2>(x)", of("b", 2, 4, 6)),
    shaped("y = SpaceToDepth<blocksize = 3>(x)", of("b", 1, 3, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


REFUSED = [
    (
        Case(
            "v = ReduceMean<keepdims = 0>(w) y = Pad(x, p, v)",
            {"x": X, "p": ints(0, 1, 0, 0, 0, 2), "w": of(3)},
        ),
        "fills with is computed",
    ),
    (shaped('y = Pad<mode = "edge">(x, p)', X, p=ints(0, -1, 1, 0, 0, 0)), "it cuts"),
    (cut(of("b", 3), [1], [FAR], [0]), "along the batch"),
    (shaped("y = Pad(x, p)", of("b", 3), p=ints(1, 0, 0, 0)), "pads the batch"),
    (
        Case("s = Shape(x) y = Tile(t, r)", {"x": of("b", 3), "t": of("b", "b"), "r": ints(2, 1)}),
        "more than one axis",
    ),
    (
        Case(
            "n = Shape<end = 1>(x) y = Slice(w, zero, n, zero)",
            {"x": of("b", 3), "w": of(9, 2), "zero": ints(0)},
        ),
        "constant",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)
