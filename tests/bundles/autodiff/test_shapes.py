"""Sizes that are no multiple of the batch are not taken for constants."""

from __future__ import annotations

from edged.bundles.autodiff.shapes import examine
from tests.bundles.autodiff.cases import Case, ints, of
from tests.bundles.autodiff.oracle import assert_refused

CASES: list[Case] = []  # None is judged: there is no gradient.
HALF = """s = Shape<start = 0, end = 1>(x) h = Div(s, two) z = Slice(x, zero, h)
    e = Tanh(z) y = ReduceSum<keepdims = 0>(e)"""
TENSORS = {"x": of("b", 3), "two": ints(2), "zero": ints(0)}


def test_half_of_the_batch_is_no_constant() -> None:
    info = examine(Case(HALF, TENSORS).model(), [])
    assert info.dims["x"] == ("batch", 3)
    assert "z" not in info.dims
    assert "h" not in info.values
    assert info.values["two"] == 2


def test_a_rule_that_needs_such_a_size_refuses_it() -> None:
    assert_refused(Case(HALF, TENSORS), "the shape of 'e' is not known")
