"""Rules of activations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.autodiff.cases import Case, number, of, within
from tests.bundles.autodiff.oracle import judge

FORMS = [
    "Relu", "LeakyRelu", "LeakyRelu<alpha = 0.3>", "LeakyRelu<alpha = 0.0>", "LeakyRelu<alpha = -0.5>",
    "ThresholdedRelu", "ThresholdedRelu<alpha = 0.2>", "ThresholdedRelu<alpha = -0.5>", "Sigmoid", "Tanh",
    "Softplus", "Softsign", "Elu", "Elu<alpha = 0.4>", "Selu", "Selu<alpha = 1.2, gamma = 0.8>", "Celu",
    "Celu<alpha = 0.5>", "Celu<alpha = 2.0>", "HardSigmoid", "HardSigmoid<alpha = 0.6, beta = 0.1>",
    "HardSwish", "Softmax", "Softmax<axis = 0>", "Softmax<axis = 1>",
    "Softmax<axis = -2>", "LogSoftmax", "LogSoftmax<axis = 0>", "LogSoftmax<axis = 1>",
    "LogSoftmax<axis = -1>",
]  # fmt: skip

CASES = [
    *(Case(f"y = {form}(x)", {"x": within(-4, 4, "b", 3, 2)}) for form in FORMS),
    Case("y = Relu(w)", {"w": of(), "x": of("b", 1)}),
    *(
        Case("y = PRelu(x, s)", {"x": of("b", 3, 4), "s": s})
        for s in (of(4), of(3, 1), of(1), of(1, 1), of(3, 4), of(1, 3, 1))
    ),
    # A slope for each channel, which is computed itself.
    Case("s = Tanh(w) y = PRelu(x, s)", {"x": of("b", 3, 4), "w": of(3, 1)}),
    # As exporters write GELU, in two orders, and with x read once more.
    *(
        Case(
            f"{body} z = Mul(y, x)",
            {"x": of("b", 3), "root": number(np.sqrt(2)), "one": number(1), "half": number(0.5)},
            fixed=("root", "one", "half"),
            ends=("z",),
        )
        for body in (
            "a = Div(x, root) e = Erf(a) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)",
            "h = Mul(x, half) a = Div(x, root) e = Erf(a) p = Add(one, e) y = Mul(h, p)",
        )
    ),
    # Large values, where a formula that is not careful overflows.
    *(
        Case(f"y = {form}(x)", {"x": within(low, low + 60, "b", 3)}, rows=(3,))
        for form in ("Softplus", "Softmax", "LogSoftmax", "Sigmoid", "Tanh")
        for low in (30, -90)
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


POINT = {"w": number([0, -1, 1]), "x": of("b", 1)}
# Where two pieces meet, the slope is PyTorch's, but for PRelu.
ON_EDGES = [
    Case("y = Relu(w)", POINT, expected={"w": [0, 0, 1]}),
    Case("y = LeakyRelu<alpha = 0.1>(w)", POINT, expected={"w": [0.1, 0.1, 1]}),
    Case("y = ThresholdedRelu<alpha = 1.0>(w)", POINT, expected={"w": 0}),
    Case("y = HardSwish(w)", {"w": number([-3, 3]), "x": of("b", 1)}, expected={"w": [0, 1]}),
    Case("y = HardSigmoid<alpha = 0.5, beta = 0.5>(w)", POINT, expected={"w": [0.5, 0, 0]}),
    Case("y = Celu(w)", POINT, expected={"w": [1, np.exp(-1), 1]}),
    Case("y = Elu<alpha = 2.0>(w)", POINT, expected={"w": [2, 2 * np.exp(-1), 1]}),
    Case(
        "y = PRelu(w, s)",
        {**POINT, "s": number([0.1])},
        expected={"w": [1, 0.1, 1], "s": [-1]},
    ),
    # Far out slopes are 0 or 1 and never NaN.
    Case("y = Softplus(w)", {"w": number([-200, 200]), "x": of("b", 1)}, expected={"w": [0, 1]}),
    Case("y = Elu(w)", {"w": number([-200, 200]), "x": of("b", 1)}, expected={"w": [0, 1]}),
    Case("y = Gelu(w)", {"w": number([-200, 200]), "x": of("b", 1)}, expected={"w": [0, 1]}, opset=20),
]


@pytest.mark.parametrize("case", ON_EDGES, ids=str)
def test_gradient_on_an_edge(case: Case) -> None:
    judge(case)
