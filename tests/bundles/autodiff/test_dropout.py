"""The rule of dropout, whose mask comes from the noise of the step."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, number, of, within
from tests.bundles.autodiff.oracle import assert_refused, judge

YES = np.array(True)


def dropped(body: str, keep: str, x: tuple[int | str, ...], noise: int, ratio: float = 0.25) -> Case:
    """A case with noise for it; `keep` reshapes the noise to the form of the mask."""
    reference = f"{keep} c = Less(m, r) k = Where(c, zero, factor) y = Mul(x, k)"
    tensors = {
        "x": of(*x),
        "noise": within(0, 1, "b", noise),
        "r": number(ratio),
        "t": YES,
        "zero": number(0),
        "factor": number(1 / (1 - ratio)),
    }
    return Case(body, tensors, ("noise", "r", "zero", "factor"), reference=reference)


CASES = [
    dropped("y = Dropout(x, r, t)", "m = Identity(noise)", ("b", 6), 6),
    dropped("y = Dropout(x, r, t)", "m = Identity(noise)", ("b", 6), 6, 0.0),
    dropped('y = Dropout(x, "", t)', "m = Identity(noise)", ("b", 6), 6, 0.5),
    dropped("y = Dropout(x, r, t)", "s = Shape(x) m = Reshape(noise, s)", ("b", 2, 3), 6),
    dropped("y = Dropout(x, r, t)", "s = Shape(x) m = Reshape(noise, s)", (3, "b", 2), 6),
    Case("y = Dropout(x)", {"x": of("b", 6)}),
    Case("y = Dropout(x, r)", {"x": of("b", 6), "r": number(0.3)}, ("r",)),
    Case("y = Dropout(x, r, t)", {"x": of("b", 6), "r": number(0.3), "t": np.array(False)}, ("r",)),
    # The mask is read outside of training.
    Case("d, m = Dropout(x) k = Cast<to = 1>(m) y = Mul(d, k)", {"x": of("b", 6)}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


REFUSED = [
    (
        Case("y = Dropout(w, r, t)", {"w": of(3), "r": number(0.5), "t": YES, "x": of("b", 1)}, ("r",)),
        "does not grow",
    ),
    (
        Case(
            "m = ReduceMean<keepdims = 0>(x) r = Sigmoid(m) y = Dropout(x, r, t)", {"x": of("b", 3), "t": YES}
        ),
        "ratio must be constant",
    ),
    (
        Case(
            "t = Greater(x, r) s = ReduceMax<keepdims = 0>(x) c = Greater(s, r) y = Dropout(x, r, c)",
            {"x": of("b", 3), "r": number(0.5)},
            ("r",),
        ),
        "whether it is training",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)
