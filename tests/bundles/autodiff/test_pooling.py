"""Rules of pooling over windows."""

from __future__ import annotations

import pytest

from tests.bundles.autodiff.cases import Case, number, of
from tests.bundles.autodiff.oracle import assert_refused, judge

# Sizes, and the form of the windows.
ONE = [
    ((8,), "kernel_shape = [2], strides = [2]"),
    ((9,), "kernel_shape = [2], strides = [2]"),
    ((9,), "kernel_shape = [2], strides = [2], ceil_mode = 1"),
    ((8,), "kernel_shape = [3]"),
    ((8,), "kernel_shape = [3], strides = [2], pads = [1, 1]"),
    ((8,), "kernel_shape = [3], strides = [2], pads = [1, 0], ceil_mode = 1"),
    ((8,), "kernel_shape = [2], strides = [3]"),
    ((8,), "kernel_shape = [2], strides = [3], ceil_mode = 1"),
    ((7,), 'kernel_shape = [3], strides = [2], auto_pad = "SAME_UPPER"'),
    ((8,), 'kernel_shape = [2], strides = [1], auto_pad = "SAME_LOWER"'),
    ((8,), 'kernel_shape = [3], strides = [2], auto_pad = "VALID"'),
    ((5,), "kernel_shape = [5]"),
]
MORE = [
    ((4, 6), "kernel_shape = [2, 2], strides = [2, 2]"),
    ((4, 6), "kernel_shape = [2, 3], strides = [2, 3]"),
    ((6, 6), "kernel_shape = [3, 2], strides = [3, 2]"),
    ((5, 7), "kernel_shape = [2, 2], strides = [2, 2]"),
    ((5, 7), "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1"),
    ((5, 6), "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"),
    ((5, 6), "kernel_shape = [3, 2], pads = [1, 0, 1, 1]"),
    ((5, 6), 'kernel_shape = [2, 3], strides = [1, 2], auto_pad = "SAME_UPPER"'),
    ((5, 6), 'kernel_shape = [2, 2], auto_pad = "SAME_LOWER"'),
    ((4, 6), "kernel_shape = [1, 2], strides = [1, 2]"),
    ((4, 5), "kernel_shape = [2, 1], strides = [2, 1]"),
    ((4, 4, 4), "kernel_shape = [2, 2, 2], strides = [2, 2, 2]"),
    ((3, 4, 4), "kernel_shape = [2, 3, 2], strides = [1, 2, 2], pads = [0, 1, 0, 1, 1, 0]"),
    ((3, 3, 3), "kernel_shape = [2, 2, 2], strides = [2, 2, 2], ceil_mode = 1"),
]
DILATED = [
    ((8,), "kernel_shape = [2], dilations = [3]"),
    ((9,), "kernel_shape = [2], dilations = [2], strides = [3], pads = [1, 1]"),
    ((9,), "kernel_shape = [2], dilations = [2], strides = [3], ceil_mode = 1"),
    ((6, 6), "kernel_shape = [2, 2], dilations = [2, 1], strides = [2, 2]"),
    ((6, 6), "kernel_shape = [2, 2], dilations = [2, 3], strides = [3, 3]"),
]


def pool(operator: str, sizes: tuple[int, ...], attributes: str) -> Case:
    return Case(f"y = {operator}<{attributes}>(x)", {"x": of("b", 2, *sizes)}, rows=(3, 1))


CASES = [
    *(pool("MaxPool", *form) for form in [*ONE, *MORE, *DILATED]),
    *(pool("AveragePool", *form) for form in [*ONE, *MORE]),
    *(
        pool("AveragePool", sizes, f"{attributes}, count_include_pad = 1")
        for sizes, attributes in [*ONE, *MORE]
        if "ceil" not in attributes
    ),
    Case("r = MaxPool<kernel_shape = [2], strides = [2]>(x) y = ReduceMean(r)", {"x": of("b", 2, 6)}),
    # The positions are read, too.
    Case(
        "m, i = MaxPool<kernel_shape = [2], strides = [2]>(x) f = Cast<to = 1>(i) y = Mul(m, f)",
        {"x": of("b", 1, 6)},
        rows=(2,),
    ),
    # Activations come behind the pooling, and two readers keep them before it.
    *(
        Case(
            f"a = {form}(x) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)", {"x": of("b", 2, 4, 4)}
        )
        for form in ("Relu", "LeakyRelu<alpha = 0.2>", "LeakyRelu<alpha = -0.2>", "Sigmoid", "Tanh")
    ),
    Case(
        "a = Relu(x) p = MaxPool<kernel_shape = [2], strides = [2]>(a) q = GlobalMaxPool(a) y = Add(p, q)",
        {"x": of("b", 2, 6)},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


FLAT = number([[[3, 3, 1, 1]]])
ON_EDGES = [
    # The first of equal values takes it.
    Case(
        "y = MaxPool<kernel_shape = [2], strides = [2]>(w)",
        {"w": FLAT, "x": of("b", 1)},
        expected={"w": [[[1, 0, 1, 0]]]},
    ),
    Case(
        "y = MaxPool<kernel_shape = [2]>(w)", {"w": FLAT, "x": of("b", 1)}, expected={"w": [[[1, 1, 1, 0]]]}
    ),
]


@pytest.mark.parametrize("case", ON_EDGES, ids=str)
def test_gradient_on_an_edge(case: Case) -> None:
    judge(case)


REFUSED = [
    (pool("LpPool", (6,), "kernel_shape = [2]"), "it has no gradient"),
    (pool("MaxPool", (6, 6), "kernel_shape = [3, 3], storage_order = 1"), "storage_order"),
    (
        pool("AveragePool", (5,), "kernel_shape = [2], strides = [2], ceil_mode = 1, count_include_pad = 1"),
        "counts padding",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)
