"""What the lowerings of recurrent layers share: reading the layer, choosing a form, gradients of weights.

Notation: T is the length of the sequence, N the batch, I the size of the input, H that of the state, and
k the number of gates, whose weights lie below each other as in the ONNX specification. ḡ is the gradient
of what the gates compute before their activation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onnx import helper

from edged.artifacts.lowering.scans import Body, write_choice
from edged.artifacts.lowering.writer import Writer, attributes_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

    Form = Callable[["Layer", Body], list[str]]

# Batches below FEW rows: the stock operator at once, and its gates again in one product. From there on every
# step is written out, which saves computing the gates twice. From MANY rows on the factors of the gradient
# are computed in the step too, while what they are made of is in the cache. Measured for T=128, H=64.
FEW, MANY = 8, 32


class Layer(NamedTuple):
    """A recurrent layer of one direction.

    `x` is `(T, N, I)`, `weight` `(k·H, I)`, `recurrence` `(k·H, H)`, `bias` `(2·k·H,)` or empty;
    `first` are the initial states, each `(N, H)`. `given` are the operator's own inputs.
    """

    x: str
    weight: str
    recurrence: str
    bias: str
    first: list[str]
    given: list[str]
    length: int
    hidden: int
    linear_before_reset: bool = False


def read_layer(
    node: onnx.NodeProto, to: Writer, *, bias: str, first: Sequence[str], linear_before_reset: bool = False
) -> Layer:
    """The layer of a training or gradient node.

    What is more than a plain layer is refused before there are such nodes (`edged.artifacts.rewriting`).
    """
    x, weight, recurrence = node.input[:3]
    length = to.shape(x, node)[0]
    if length is None:
        raise refusal(node, "the length of the sequence varies")
    return Layer(
        x,
        _without_direction(weight, to),
        _without_direction(recurrence, to),
        _without_direction(bias, to),
        [_without_direction(name, to) for name in first],
        [x, weight, recurrence, bias, "", *first],
        length,
        attributes_of(node)["hidden_size"],
        linear_before_reset,
    )


def _without_direction(name: str, to: Writer) -> str:
    return name and to.add("Squeeze", [name, to.sizes(0)])


def keep_stock(node: onnx.NodeProto, operator: str, outputs: int, to: Writer) -> None:
    """Write the stock operator for a layer through which no gradient goes."""
    made = helper.make_node(operator, list(node.input), list(node.output[:outputs]), name=node.name)
    made.attribute.extend(node.attribute)
    to.keep(made)


def write_forms(forms: tuple[Form, Form, Form], layer: Layer, to: Writer, outputs: list[str]) -> None:
    """Write three ways to the same outputs: for batches below `FEW` rows, below `MANY`, and for others."""
    rows = to.add("Shape", [layer.x], start=1, end=2)
    few, more, some, many = (Body(to) for _ in range(4))
    results = [form(layer, body) for form, body in zip(forms, (few, some, many), strict=True)]
    inner = [to.name("form") for _ in outputs]
    write_choice(
        more.add("Less", [rows, to.sizes(MANY)]), (some, many), (results[1], results[2]), inner, more
    )
    write_choice(to.add("Less", [rows, to.sizes(FEW)]), (few, more), (results[0], inner), outputs, to)


def projected(layer: Layer, to: Body, bias: str) -> str:
    """What the gates take from the input, `(T·N, k·H)`: W·xₜ + b for all steps in one product."""
    return to.add("Gemm", [rows_of(layer.x, to), layer.weight, *([bias] if bias else [])], transB=1)


def rows_of(sequence: str, to: Writer | Body) -> str:
    """A sequence `(T, N, width)` as the matrix `(T·N, width)` of its rows."""
    width = to.add("Shape", [sequence], start=2, end=3)
    return to.add("Reshape", [sequence, to.add("Concat", [to.sizes(-1), width], axis=0)])


def sequence_of(rows: str, layer: Layer, width: int, to: Body) -> str:
    """The matrix `(T·N, width)` as a sequence `(T, N, width)`."""
    return to.add("Reshape", [rows, to.sizes(layer.length, -1, width)])


def before_each(first: str, states: str, to: Writer | Body) -> str:
    """The state before every step, `(T, N, H)`: the first one, then those after all steps but the last."""
    earlier = to.add("Slice", [states, to.sizes(0), to.sizes(-1), to.sizes(0)])
    return to.add("Concat", [to.add("Unsqueeze", [first, to.sizes(0)]), earlier], axis=0)


def start_of(gradient: str, like: str, to: Writer) -> str:
    """The gradient `(N, H)` of a last state, which is zero where nothing reads that state."""
    if gradient:
        return _without_direction(gradient, to)
    return to.add("Mul", [like, to.number(0)])


def write_input_gradient(layer: Layer, gradient: str, output: str, to: Writer) -> None:
    """Of x, `(T, N, I)`: ḡ·W."""
    to.add("MatMul", [gradient, layer.weight], output)


def product(gradient: str, values: str, to: Writer) -> str:
    """ḡᵀ·values, `(width of ḡ, width of the values)`, in one product over all T·N rows."""
    return to.add("Gemm", [rows_of(gradient, to), rows_of(values, to)], transA=1)


def write_product(gradient: str, values: str, output: str, to: Writer) -> None:
    """Of weights `(1, k·H, width of the values)`: ḡᵀ·values."""
    to.add("Unsqueeze", [product(gradient, values, to), to.sizes(0)], output)


def lessened(a: str, b: str, to: Writer | Body) -> str:
    """a∘(1 − b) as a − a∘b, which needs no constant."""
    return to.add("Sub", [a, to.add("Mul", [a, b])])


def summed(gradient: str, to: Writer) -> str:
    """Σḡ over all steps and rows."""
    return to.add("ReduceSum", [gradient, to.sizes(0, 1)], keepdims=0)
