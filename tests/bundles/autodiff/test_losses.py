"""Rules of losses in which every row has a weight."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, labels, number, of, within
from tests.bundles.autodiff.oracle import assert_refused, judge

WEIGHTS = within(0.2, 2, "b", 1)
# The mean of losses of rows by the rows' weights, and the sum that the loss of a step is instead.
MEAN = (
    "w = Reshape(weights, flat) p = Mul(rows, w)"
    " a = ReduceSum<keepdims = 0>(p) t = ReduceSum<keepdims = 0>(w)"
)
WHOLE = {"": f"{MEAN} y = Div(a, t)", "y": f"{MEAN} y = Identity(a)"}
ROWS = (
    "n = LogSoftmax<axis = 1>(x) i = Unsqueeze(l, last)"
    " e = GatherElements<axis = 1>(n, i) g = Neg(e) rows = Reshape(g, flat)"
)
CLASSES = """f = Reshape(weights, flat) w = Mul(f, k) p = Mul(rows, w) a = ReduceSum<keepdims = 0>(p)
  t = ReduceSum<keepdims = 0>(w) y = Div(a, t)"""
COMMON = {"flat": np.array([-1]), "last": np.array([1])}


def mean(body: str, rows: str, loss: str, *dims: int) -> Case:
    tensors = {"x": of("b", *dims), "v": of(*dims[-1:]), "weights": WEIGHTS, **COMMON}
    return Case(body, tensors, ("weights",), reference=f"{rows} {WHOLE[loss]}", loss=loss)


SQUARE = "d = Mul(x, v) s = Mul(d, d)"
CASES = [
    *(
        case
        for loss in ("", "y")
        for case in (
            mean(
                f"{SQUARE} y = ReduceMean<keepdims = 0>(s)",
                f"{SQUARE} rows = ReduceMean<axes = [1], keepdims = 0>(s)",
                loss,
                3,
            ),
            mean(
                f"{SQUARE} y = ReduceMean<keepdims = 0>(s)",
                f"{SQUARE} rows = ReduceMean<axes = [1, 2], keepdims = 0>(s)",
                loss,
                3,
                4,
            ),
            mean(
                f"{SQUARE} r = ReduceSum<keepdims = 0>(s, last) y = ReduceMean<keepdims = 0>(r)",
                f"{SQUARE} rows = ReduceSum<keepdims = 0>(s, last)",
                loss,
                3,
            ),
        )
    ),
    mean(
        f"{SQUARE} m = ReduceMean<axes = [0, 1]>(s) y = Squeeze(m)",
        f"{SQUARE} rows = ReduceMean<axes = [1], keepdims = 0>(s)",
        "",
        3,
    ),
    *(
        Case(
            "y = SoftmaxCrossEntropyLoss(x, l)",
            {"x": of("b", classes), "l": labels(classes, "b"), "weights": WEIGHTS, **COMMON},
            ("weights",),
            reference=f"{ROWS} {WHOLE[loss]}",
            loss=loss,
        )
        for loss in ("", "y")
        for classes in (3, 70)
    ),
    # Twice the loss, beside another one.
    Case(
        "k = SoftmaxCrossEntropyLoss(x, l) y = Mul(k, two)",
        {"x": of("b", 3), "l": labels(3, "b"), "two": number(2), "weights": WEIGHTS, **COMMON},
        ("weights", "two"),
        reference=f"{ROWS} {WHOLE['']} ".replace("y = Div(a, t)", "k = Div(a, t) y = Mul(k, two)"),
    ),
    # Weights of classes.
    Case(
        "y = SoftmaxCrossEntropyLoss(x, l, c)",
        {"x": of("b", 3), "l": labels(3, "b"), "c": number([1, 2, 0.5]), "weights": WEIGHTS, **COMMON},
        ("weights", "c"),
        reference=f"{ROWS} k = Gather(c, l) {CLASSES}",
    ),
    # One that is ignored.
    Case(
        "y = SoftmaxCrossEntropyLoss<ignore_index = 1>(x, l)",
        {"x": of("b", 3), "l": labels(3, "b"), "c": number([1, 0, 1]), "weights": WEIGHTS, **COMMON},
        ("weights", "c"),
        reference=f"{ROWS} k = Gather(c, l) {CLASSES}",
        rows=(9,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


def entropy(attributes: str, x: tuple[int | str, ...], label: tuple[int | str, ...]) -> Case:
    return Case(f"y = SoftmaxCrossEntropyLoss{attributes}(x, l)", {"x": of(*x), "l": labels(3, *label)})


REFUSED = [
    (entropy('<reduction = "none">', ("b", 3), ("b",)), "reduced by its mean"),
    (entropy('<reduction = "sum">', ("b", 3), ("b",)), "reduced by its mean"),
    (entropy("", ("b", 3, 4), ("b", 4)), "only logits"),
    (
        Case(
            "k, n = SoftmaxCrossEntropyLoss(x, l) s = ReduceSum<keepdims = 0>(n) y = Add(k, s)",
            {"x": of("b", 3), "l": labels(3, "b")},
        ),
        "log-probabilities are read",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)
