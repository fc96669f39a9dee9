"""Parts of a recurrent layer, the loop over its steps, and the loop of its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape
from edged.bundles.graph.writer import NodeWriter, ScanState, attributes_of, untrainable, write_scan

# Number of states that go from step to step, and the activations of a plain layer.
STATES = {"GRU": 1, "LSTM": 2, "RNN": 1}
_SAME: Mapping[str, Any] = {"clip": 0, "layout": 0, "input_forget": 0, "direction": "forward"}
_PLAIN: Mapping[str, Mapping[str, Any]] = {
    "GRU": {**_SAME, "activations": [b"Sigmoid", b"Tanh"]},
    "LSTM": {**_SAME, "activations": [b"Sigmoid", b"Tanh", b"Tanh"]},
    "RNN": _SAME,
}


class RecurrentLayer(NamedTuple):
    """A recurrent layer of one direction.

    `x` is `(T, N, I)`, `weight` `(k·H, I)`, `recurrence` `(k·H, H)`, `bias` `(2·k·H,)` or empty;
    `first` are the initial states, each `(N, H)`.
    """

    x: str
    weight: str
    recurrence: str
    bias: str
    first: list[str]
    length: int
    width: int
    hidden: int
    linear_before_reset: bool = False


def read_layer(node: onnx.NodeProto, to: Tape) -> RecurrentLayer:
    """The layer of a node that goes forward, as `forms.plain_layers` leaves it; refuses one that is more."""
    if reason := more_than_plain(node):
        raise untrainable(node, reason)
    x, weight, recurrence, bias, _, *first = [*node.input, *[""] * 7][: 5 + STATES[node.op_type]]
    length, _, width = to.dims(x, node)
    if not isinstance(length, int) or not isinstance(width, int):
        raise untrainable(node, "the length or width of its sequence varies")
    given, size = attributes_of(node), attributes_of(node)["hidden_size"]
    return RecurrentLayer(
        x,
        _without_direction(weight, to),
        _without_direction(recurrence, to),
        _without_direction(bias, to),
        [_without_direction(name, to) or _zeros(x, size, to) for name in first],
        length,
        width,
        size,
        bool(given.get("linear_before_reset", 0)),
    )


def more_than_plain(node: onnx.NodeProto) -> str:
    """What makes a recurrent node more than a plain layer; nothing for all other nodes."""
    if name := further_input(node):
        return f"it has the input {name}"
    given = attributes_of(node)
    for name, plain in _PLAIN.get(node.op_type, {}).items():
        value = given.get(name, plain)
        if value != plain:
            return f"its {name} is {_written(value)}"
    return ""


def further_input(node: onnx.NodeProto) -> str:
    """An input of a recurrent node that no rule takes; nothing where there is none, or for other nodes."""
    if node.op_type not in _PLAIN:
        return ""
    inputs = [*node.input, *[""] * 8]
    return next((name for place, name in ((4, "sequence_lens"), (7, "P")) if inputs[place]), "")


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(item.decode() for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _without_direction(name: str, to: NodeWriter) -> str:
    return name and to.add("Squeeze", [name, to.sizes(0)])


def _zeros(x: str, hidden: int, to: Tape) -> str:
    """Zeros `(N, H)`, which an initial state is that is left out."""
    rows = to.add("Shape", [x], start=1, end=2)
    return to.add("ConstantOfShape", [to.add("Concat", [rows, to.sizes(hidden)], axis=0)])


def affine(values: str, matrix: str, added: str, to: NodeWriter) -> str:
    """values·matrixᵀ, and a bias or another product added, if there is one."""
    return to.add("Gemm", [values, matrix, *([added] if added else [])], transB=1)


def both_biases(layer: RecurrentLayer, gates: int, to: NodeWriter) -> str:
    """The biases of the input's side and of the state's added up; nothing where there are none."""
    return to.add("Add", to.split(layer.bias, *[gates * layer.hidden] * 2)) if layer.bias else ""


def write_steps(
    node: onnx.NodeProto,
    layer: RecurrentLayer,
    step: NodeWriter,
    x: str,
    states: Sequence[tuple[str, str]],
    kept: Sequence[str],
    to: Tape,
) -> list[str]:
    """Write the loop of a layer and the node's outputs; sequences of what the step has `kept`, then of hₜ₋₁.

    `step` is what one round does with `x`; `states` are their names in it, before and after, hₜ first.
    """
    carried = [
        ScanState(first, *names, to.name("last")) for first, names in zip(layer.first, states, strict=True)
    ]
    before = step.add("Identity", [states[0][0]])
    collected = {name: to.name("kept") for name in (*kept, before)}
    write_scan(step, to, states=carried, sequences={x: layer.x}, collected=collected)
    if node.output[0]:
        later = to.add("Slice", [collected[before], to.sizes(1), to.sizes(layer.length), to.sizes(0)])
        final = to.add("Unsqueeze", [carried[0].last, to.sizes(0)])
        to.add("Unsqueeze", [to.add("Concat", [later, final], axis=0), to.sizes(1)], node.output[0])
    for name, state in zip(node.output[1:], carried, strict=False):
        if name:
            to.add("Unsqueeze", [state.last, to.sizes(0)], name)
    return list(collected.values())


def lessened(a: str, b: str, to: NodeWriter) -> str:
    """a∘(1 − b) as a − a∘b, which needs no constant."""
    return to.add("Sub", [a, to.add("Mul", [a, b])])


class Loop:
    """The loop that backpropagation through time (Werbos 1990) makes, from the last step to the first.

    `step` is what one round does: all that is made of a step's gradient, while it is in the cache.
    """

    def __init__(self, node: onnx.NodeProto, layer: RecurrentLayer, to: Tape) -> None:
        self.layer, self.to, self.step = layer, to, to.body()
        self._node = node
        self._sequences: dict[str, str] = {}
        self._collected: dict[str, str] = {}
        self._sums: list[ScanState] = []
        self._ones = ""

    def of(self, sequence: str) -> str:
        """What the step reads of a sequence `(T, N, ...)`."""
        return self._sequences.setdefault(sequence, self.step.name("of"))

    def reaching(self, before: str, gradient: Adjoint | None) -> str:
        """All that reaches a state: `before` from the next step, and from readers of the layer's output."""
        if gradient is None:
            return before
        states = self.to.add("Squeeze", [self.to.whole(gradient, self._node), self.to.sizes(1)])
        return self.step.add("Add", [before, self.of(states)])

    def product(self, gradient: str, values: str, shape: Sequence[int]) -> str:
        """ḡᵀ·values over all steps, of this shape; `gradient` is of the step, `values` a sequence."""
        before = self.step.name("sum")
        return self._added_up(before, [gradient, self.of(values), before], shape, transA=1)

    def total(self, gradient: str, width: int) -> str:
        """Σḡ over all steps and rows, `(width,)`; `gradient` is of the step."""
        before = self.step.name("sum")
        total = self._added_up(before, [self._every_row(), gradient, before], (1, width))
        return self.to.add("Squeeze", [total, self.to.sizes(0)])

    def _every_row(self) -> str:
        """Ones `(1, N)`: a product with them adds up rows, faster than a sum does."""
        if not self._ones:
            rows = self.to.add("Shape", [self.layer.x], start=1, end=2)
            size = self.to.add("Concat", [self.to.sizes(1), rows], axis=0)
            one = numpy_helper.from_array(np.ones(1, np.float32))
            self._ones = self.to.add("ConstantOfShape", [size], value=one)
        return self._ones

    def _added_up(self, before: str, inputs: list[str], shape: Sequence[int], **attributes: int) -> str:
        zeros, after = self.to.add("ConstantOfShape", [self.to.sizes(*shape)]), self.step.name("gemm")
        self.step.add("Gemm", inputs, after, **attributes)
        self._sums.append(ScanState(zeros, before, after, self.to.name("last")))
        return self._sums[-1].last

    def of_inputs(self, gradient: str) -> str:
        """ḡ·W of all steps, `(T, N, I)`, where it is wanted; `gradient` is of the step."""
        if not self.to.wants(self._node, 0):
            return ""
        each = self.step.add("MatMul", [gradient, self.layer.weight])
        return self._collected.setdefault(each, self.to.name("collected"))

    def write(self, states: Sequence[tuple[str, str]], last: Sequence[Adjoint | None]) -> list[str]:
        """Write the loop, which carries the gradients of states; those of the initial states.

        `states` are their names in the step, before and after; `last` are the gradients of the last states.
        """
        starts = [self._start(place, last) for place in range(len(states))]
        carried = [
            ScanState(start, *names, self.to.name("last"))
            for start, names in zip(starts, states, strict=True)
        ]
        write_scan(
            self.step,
            self.to,
            states=[*self._sums, *carried],
            sequences={name: sequence for sequence, name in self._sequences.items()},
            collected=self._collected,
            backwards=True,
        )
        return [state.last for state in carried]

    def _start(self, place: int, last: Sequence[Adjoint | None]) -> str:
        """The gradient `(N, H)` of a last state, which is zero where nothing reads that state."""
        gradient = last[place] if place < len(last) else None
        if gradient is None:
            return self.to.add("Mul", [self.layer.first[place], self.to.number(0)])
        return self.to.add("Squeeze", [self.to.whole(gradient, self._node, 1 + place), self.to.sizes(0)])

    def gradients(self, of_x: str, *of_others: str) -> Adjoints:
        """The gradients of x, then of W, R, biases and initial states as the operator has them."""
        found: Adjoints = [None] * (5 + len(self.layer.first))
        places = [0, 1, 2, 3, *range(5, len(found))]
        for place, value in zip(places, (of_x, *of_others), strict=True):
            if self.to.wants(self._node, place):
                name = self.to.add("Unsqueeze", [value, self.to.sizes(0)]) if place else value
                found[place] = Adjoint(name, self.to.dims(self._node.input[place], self._node))
        return found
