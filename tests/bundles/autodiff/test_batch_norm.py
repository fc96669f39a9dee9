"""Rules of batch normalisation in training, where rows of a batch count by their weights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, of, within
from tests.bundles.autodiff.oracle import assert_refused, derive, gradients, judge

# The same in other operators: weights of rows, as shares of their sum, then the mean over positions.
REFERENCE = """
  total = ReduceSum<keepdims = 0>(weights) share = Div(weights, total)
  form = Constant<value_ints = [{form}]>()
  s = Reshape(share, form) first = Constant<value_ints = [0]>()
  each = {mean}(x) weighted = Mul(each, s) mu = ReduceSum(weighted, first)
  centred = Sub(x, mu) square = Mul(centred, centred) squares = {mean}(square)
  of_rows = Mul(squares, s) variance = ReduceSum(of_rows, first)
  e = Constant<value_float = 0.01>() sum = Add(variance, e) root = Sqrt(sum) normal = Div(centred, root)
  wide = Constant<value_ints = [{wide}]>() gamma = Reshape(g, wide) beta = Reshape(c, wide)
  scaled = Mul(normal, gamma) y = Add(scaled, beta)
"""


def trained(*sizes: int, fixed: tuple[str, ...] = (), before: str = "", **more: object) -> Case:
    rank = 2 + len(sizes)
    axes = ", ".join(map(str, range(2, rank)))
    reference = REFERENCE.format(
        form=", ".join(["-1", *["1"] * (rank - 1)]),
        wide=", ".join(["1", "-1", *["1"] * len(sizes)]),
        mean=f"ReduceMean<axes = [{axes}]>" if sizes else "Identity",
    )
    tensors = {
        "x": of("b", 2, *sizes),
        "g": of(2),
        "c": of(2),
        "m": of(2),
        "v": within(0.5, 2, 2),
        "weights": within(0.2, 2, "b", 1),
    }
    body = f"{before} y = BatchNormalization<epsilon = 0.01>(x, g, c, m, v)"
    return Case(body, tensors, ("m", "v", "weights", *fixed), rows=(5, 2), reference=f"{before} {reference}")


CASES = [
    trained(),
    trained(3),
    trained(3, 4),
    trained(2, 2, 2),
    trained(3, fixed=("g",)),
    trained(3, fixed=("x",)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


def test_a_row_of_no_weight_leaves_no_trace() -> None:
    case = trained(3)
    values, made = case.values(5), derive(case)
    values["weights"][4] = 0
    seed = np.ones((5, 2, 3), np.float32)
    seed[4] = 0
    _, whole = gradients(made, values, {"y": seed}, 5)
    less = {name: value[:4] if name in ("x", "weights") else value for name, value in values.items()}
    _, without = gradients(made, less, {"y": seed[:4]}, 4)
    for name in ("g", "c"):
        np.testing.assert_allclose(whole[name], without[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(whole["x"][:4], without["x"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(whole["x"][4], 0)


def test_the_batch_must_be_in_front() -> None:
    body = "t = Transpose<perm = [1, 0]>(x) y = BatchNormalization(t, g, c, m, v)"
    tensors = {"x": of(5, "b"), "g": of(5), "c": of(5), "m": of(5), "v": within(0.5, 2, 5)}
    turned = {**tensors, "x": of("b", 5, 2)}
    assert_refused(
        Case(body.replace("[1, 0]", "[2, 1, 0]"), turned, ("m", "v")), "its first axis is not the batch"
    )
