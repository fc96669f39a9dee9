"""Which rule an operator has.

A forward rule writes a node in another way, or keeps what its gradient needs (`Tape.saved`); operators
without one are copied. A backward rule, the vector-Jacobian product, gets the adjoints of the node's outputs,
None for one that nothing reads, and returns those of its inputs, None where no gradient goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import onnx

from edged.bundles.autodiff.tape import Adjoints, Tape

Forward = Callable[[onnx.NodeProto, Tape], None]
# A rule whose operator has one output does not expect None.
Backward = Callable[[onnx.NodeProto, Sequence[Any], Tape], Adjoints]

FORWARD: dict[str, Forward] = {}
BACKWARD: dict[str, Backward] = {}
# Inputs that take no gradient although they are numbers, by their places: bounds, ratios, running statistics.
STOPS = {
    "BatchNormalization": (3, 4),
    "Dropout": (1, 2),
    "OneHot": (0, 1, 2),
    "Resize": (1, 2, 3),
}
# Operators whose derivative is zero wherever there is one.
ZERO = frozenset({
    "And", "ArgMax", "ArgMin", "Ceil", "Constant", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "OneHot", "Or",
    "Round", "Shape", "Sign", "Size", "Xor",
})  # fmt: skip

Written = TypeVar("Written", bound=Forward)
Derived = TypeVar("Derived", bound=Backward)


def forward(*operators: str) -> Callable[[Written], Written]:
    """Register a function as the forward rule of these operators."""

    def register(rule: Written) -> Written:
        FORWARD.update(dict.fromkeys(operators, rule))
        return rule

    return register


def backward(*operators: str) -> Callable[[Derived], Derived]:
    """Register a function as the backward rule of these operators."""

    def register(rule: Derived) -> Derived:
        BACKWARD.update(dict.fromkeys(operators, rule))
        return rule

    return register
