"""What the lowerings of recurrent layers share: reading the layer, choosing a form, gradients of weights.

Notation: T is the length of the sequence, N the batch, I the size of the input, H that of the state, and
k the number of gates, whose weights lie below each other as in the ONNX specification. ḡ is the gradient
of what the gates compute before their activation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onnx import helper

from edged.bundles.graph.writer import Writer, attributes_of, refusal
from edged.bundles.lowering.scan_nodes import ScanBody, write_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

    # A way to compute a layer: what is kept of it, then the last states.
    Form = Callable[["RecurrentLayer", ScanBody], list[str]]

# Batches below FEW rows: the stock operator at once, and its gates again in one product. From there on every
# step is written out, which saves computing the gates twice. From MANY rows on the gradient is computed
# within the step, too, while what it is made of is in the cache. Measured for T=128, H=64.
FEW, MANY = 8, 24


class RecurrentLayer(NamedTuple):
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
    width: int
    hidden: int
    linear_before_reset: bool = False


def read_layer(
    node: onnx.NodeProto, to: Writer, *, bias: str, first: Sequence[str], linear_before_reset: bool = False
) -> RecurrentLayer:
    """The layer of a training or gradient node.

    What is more than a plain layer is refused before there are such nodes (`edged.bundles.rewriting`).
    """
    x, weight, recurrence = node.input[:3]
    length, _, width = to.shape(x, node)
    if length is None or width is None:
        raise refusal(node, "the length or width of the sequence varies")
    return RecurrentLayer(
        x,
        _without_direction(weight, to),
        _without_direction(recurrence, to),
        _without_direction(bias, to),
        [_without_direction(name, to) for name in first],
        [x, weight, recurrence, bias, "", *first],
        length,
        width,
        attributes_of(node)["hidden_size"],
        linear_before_reset,
    )


def _without_direction(name: str, to: Writer | ScanBody) -> str:
    return name and to.add("Squeeze", [name, to.sizes(0)])


def keep_stock(node: onnx.NodeProto, operator: str, outputs: int, to: Writer) -> None:
    """Write the stock operator for a layer through which no gradient goes."""
    made = helper.make_node(operator, list(node.input), list(node.output[:outputs]), name=node.name)
    made.attribute.extend(node.attribute)
    to.copy(made)


def are_fewer(rows: int, layer: RecurrentLayer, to: Writer) -> str:
    """Whether the batch has fewer rows than these."""
    return to.add("Less", [to.add("Shape", [layer.x], start=1, end=2), to.sizes(rows)])


def write_forward(
    node: onnx.NodeProto,
    layer: RecurrentLayer,
    kept: Sequence[str],
    before: str,
    forms: tuple[Form, Form],
    to: Writer,
) -> None:
    """Write a layer in two forms, of which the size of the batch chooses.

    Parameters
    ----------
    node
        The training node, whose outputs are written.
    layer
        The layer.
    kept
        Names for what is kept for the gradient.
    before
        The one among them of hₜ₋₁.
    forms
        For batches of less than FEW rows, and for larger ones.
    to
        Where it goes.
    """
    last = [to.name("last") for _ in layer.first]
    few, more = ScanBody(to), ScanBody(to)
    results = forms[0](layer, few), forms[1](layer, more)
    write_choice(are_fewer(FEW, layer, to), (few, more), results, [*kept, *last], to)
    _write_states(node, layer, before, last, to)


def rows_of(sequence: str, to: Writer | ScanBody) -> str:
    """A sequence `(T, N, width)` as the matrix `(T·N, width)` of its rows."""
    width = to.add("Shape", [sequence], start=2, end=3)
    return to.add("Reshape", [sequence, to.add("Concat", [to.sizes(-1), width], axis=0)])


def sequence_of(rows: str, layer: RecurrentLayer, width: int, to: ScanBody) -> str:
    """The matrix `(T·N, width)` as a sequence `(T, N, width)`."""
    return to.add("Reshape", [rows, to.sizes(layer.length, -1, width)])


def before_each(first: str, states: str, to: Writer | ScanBody) -> str:
    """The state before every step, `(T, N, H)`: the first one, then those after all steps but the last."""
    earlier = to.add("Slice", [states, to.sizes(0), to.sizes(-1), to.sizes(0)])
    return to.add("Concat", [to.add("Unsqueeze", [first, to.sizes(0)]), earlier], axis=0)


def _write_states(
    node: onnx.NodeProto, layer: RecurrentLayer, before: str, last: Sequence[str], to: Writer
) -> None:
    """Write the outputs of a layer: hₜ, which is the state before every step but the first, then the last."""
    if node.output[0]:
        later = to.add("Slice", [before, to.sizes(1), to.sizes(layer.length), to.sizes(0)])
        final = to.add("Unsqueeze", [last[0], to.sizes(0)])
        to.add("Unsqueeze", [to.add("Concat", [later, final], axis=0), to.sizes(1)], node.output[0])
    for name, value in zip(node.output[1:], last, strict=False):
        if name:
            to.add("Unsqueeze", [value, to.sizes(0)], name)


def start_of(gradient: str, like: str, to: Writer | ScanBody) -> str:
    """The gradient `(N, H)` of a last state, which is zero where nothing reads that state."""
    if gradient:
        return _without_direction(gradient, to)
    return to.add("Mul", [like, to.number(0)])


def product(gradient: str, values: str, to: Writer | ScanBody) -> str:
    """ḡᵀ·values, `(width of ḡ, width of the values)`, in one product over all T·N rows."""
    return to.add("Gemm", [rows_of(gradient, to), rows_of(values, to)], transA=1)


def lessened(a: str, b: str, to: Writer | ScanBody) -> str:
    """a∘(1 − b) as a − a∘b, which needs no constant."""
    return to.add("Sub", [a, to.add("Mul", [a, b])])


def summed(gradient: str, to: Writer | ScanBody) -> str:
    """Σḡ over all steps and rows."""
    return to.add("ReduceSum", [gradient, to.sizes(0, 1)], keepdims=0)
