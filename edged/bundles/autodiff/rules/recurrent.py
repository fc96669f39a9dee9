"""What recurrent layers have in common: their parts, their loops, and backpropagation through time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape
from edged.bundles.graph.edit import needed_nodes
from edged.bundles.graph.writer import (
    NodeWriter,
    ScanState,
    attributes_of,
    untrainable,
    write_choice,
    write_scan,
)

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


Form = Callable[["RecurrentLayer", NodeWriter], list[str]]
Make = Callable[[Sequence[str], NodeWriter], list[str]]

# Number of states that go from step to step, and the activations of a plain layer.
STATES = {"GRU": 1, "LSTM": 2, "RNN": 1}
_SAME: Mapping[str, Any] = {"clip": 0, "layout": 0, "input_forget": 0, "direction": "forward"}
_PLAIN: Mapping[str, Mapping[str, Any]] = {
    "GRU": {**_SAME, "activations": [b"Sigmoid", b"Tanh"]},
    "LSTM": {**_SAME, "activations": [b"Sigmoid", b"Tanh", b"Tanh"]},
    "RNN": _SAME,
}


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
        [x, weight, recurrence, bias, "", *first],
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


def readers_of(gradients: Sequence[Adjoint | None], node: onnx.NodeProto, to: Tape) -> list[str]:
    """The gradients of the outputs, an empty name for one that nothing reads."""
    whole = [
        to.full(gradient, name, node) if gradient is not None else ""
        for gradient, name in zip(gradients, node.output, strict=True)
    ]
    return [*whole, "", ""][: 1 + STATES[node.op_type]]


def are_fewer(rows: int, layer: RecurrentLayer, to: NodeWriter) -> str:
    """Whether the batch has fewer rows than these."""
    return to.add("Less", [to.add("Shape", [layer.x], start=1, end=2), to.sizes(rows)])


def affine(values: str, matrix: str, added: str, to: NodeWriter) -> str:
    """values·matrixᵀ, and a bias or another product added, if there is one."""
    return to.add("Gemm", [values, matrix, *([added] if added else [])], transB=1)


def both_biases(layer: RecurrentLayer, gates: int, to: NodeWriter) -> str:
    """The biases of the input's side and of the state's added up; nothing where there are none."""
    return to.add("Add", to.split(layer.bias, *[gates * layer.hidden] * 2)) if layer.bias else ""


def lessened(a: str, b: str, to: NodeWriter) -> str:
    """a∘(1 − b) as a − a∘b, which needs no constant."""
    return to.add("Sub", [a, to.add("Mul", [a, b])])


def rows_of(sequence: str, to: NodeWriter) -> str:
    """A sequence `(T, N, width)` as the matrix `(T·N, width)` of its rows."""
    width = to.add("Shape", [sequence], start=2, end=3)
    return to.add("Reshape", [sequence, to.add("Concat", [to.sizes(-1), width], axis=0)])


def sequence_of(rows: str, layer: RecurrentLayer, width: int, to: NodeWriter) -> str:
    """The matrix `(T·N, width)` as a sequence `(T, N, width)`."""
    return to.add("Reshape", [rows, to.sizes(layer.length, -1, width)])


def before_each(first: str, states: str, to: NodeWriter) -> str:
    """The state before every step, `(T, N, H)`: the first one, then those after all steps but the last."""
    earlier = to.add("Slice", [states, to.sizes(0), to.sizes(-1), to.sizes(0)])
    return to.add("Concat", [to.add("Unsqueeze", [first, to.sizes(0)]), earlier], axis=0)


# ---- forward ----------------------------------------------------------------------------------


def write_forward(
    node: onnx.NodeProto, layer: RecurrentLayer, kept: int, forms: tuple[Form, Form], to: Tape
) -> list[str]:
    """Write the layer of a node in two `forms`, for batches of less than FEW rows and for larger ones.

    A form writes `kept` sequences for the gradient, hₜ₋₁ the last of them, and the last states. The names of
    the sequences are returned.
    """
    names = [to.name("kept") for _ in range(kept)]
    last = [to.name("last") for _ in layer.first]
    few, more = to.body(), to.body()
    results = forms[0](layer, few), forms[1](layer, more)
    write_choice(are_fewer(FEW, layer, to), (few, more), results, [*names, *last], to)
    if node.output[0]:  # hₜ is the state before every step but the first, then the last
        later = to.add("Slice", [names[-1], to.sizes(1), to.sizes(layer.length), to.sizes(0)])
        final = to.add("Unsqueeze", [last[0], to.sizes(0)])
        to.add("Unsqueeze", [to.add("Concat", [later, final], axis=0), to.sizes(1)], node.output[0])
    for name, value in zip(node.output[1:], last, strict=False):
        if name:
            to.add("Unsqueeze", [value, to.sizes(0)], name)
    return names


def stock_layer(
    operator: str, layer: RecurrentLayer, to: NodeWriter, **attributes: Any
) -> tuple[str, str, list[str]]:
    """Write the operator itself; the states after and before every step, `(T, N, H)`, and the last ones."""
    whole = [to.name("whole") for _ in range(1 + len(layer.first))]
    to.operator(operator, layer.given, whole, hidden_size=layer.hidden, **attributes)
    h = to.add("Squeeze", [whole[0], to.sizes(1)])
    return (
        h,
        before_each(layer.first[0], h, to),
        [to.add("Squeeze", [name, to.sizes(0)]) for name in whole[1:]],
    )


def write_steps(
    layer: RecurrentLayer,
    step: NodeWriter,
    x: str,
    states: Sequence[tuple[str, str]],
    kept: Sequence[str],
    to: NodeWriter,
) -> list[str]:
    """Write the loop of a layer: sequences of what the step has `kept` and of hₜ₋₁, and the last states.

    `step` is what one round does with `x`; `states` are their names in it, before and after, hₜ first.
    """
    before = step.add("Identity", [states[0][0]])
    collected = {name: to.name("kept") for name in (*kept, before)}
    last = [to.name("last") for _ in states]
    carried = [ScanState(*each) for each in zip(layer.first, *zip(*states, strict=True), last, strict=True)]
    write_scan(step, to, states=carried, sequences={x: layer.x}, collected=collected)
    return [*collected.values(), *last]


# ---- gradient ---------------------------------------------------------------------------------


class Loop:
    """The loop of a layer's gradient: what it reads, carries and leaves.

    `step` is what one round does, `behind` what is written behind the loop. `within` says that everything is
    computed within the step, `of_x` that the input's gradient is wanted.
    """

    def __init__(self, layer: RecurrentLayer, to: NodeWriter, *, within: bool, of_x: bool) -> None:
        self.layer, self.to, self.step, self.behind = layer, to, to.body(), to.body()
        self._within, self._of_x = within, of_x
        self._sequences: dict[str, str] = {}
        self._collected: dict[str, str] = {}
        self._sums: list[ScanState] = []
        self._ones = ""

    def of(self, sequence: str) -> str:
        """What the step reads of a sequence `(T, N, ...)`."""
        return self._sequences.setdefault(sequence, self.step.name("of"))

    def prepared(self, sequences: Sequence[str], make: Make) -> list[str]:
        """What `make` makes of sequences, for the step to read."""
        if self._within:
            return make([self.of(name) for name in sequences], self.step)
        return [self.of(name) for name in make(sequences, self.to)]

    def reaching(self, before: str, of_states: str) -> str:
        """All that reaches a state: `before` from the next step, and from its readers, if there are any."""
        if not of_states:
            return before
        states = self.to.add("Squeeze", [of_states, self.to.sizes(1)])
        return self.step.add("Add", [before, self.of(states)])

    def product(self, gradient: str, values: str, shape: Sequence[int]) -> str:
        """ḡᵀ·values over all steps, of this shape; `gradient` is of the step, `values` a sequence."""
        if not self._within:
            rows = [rows_of(name, self.behind) for name in (self._collect(gradient), values)]
            return self.behind.add("Gemm", rows, transA=1)
        before = self.step.name("sum")
        after = self.step.add("Gemm", [gradient, self.of(values), before], transA=1)
        return self._added_up(before, after, shape)

    def total(self, gradient: str, width: int) -> str:
        """Σḡ over all steps and rows, `(width,)`; `gradient` is of the step."""
        if not self._within:
            every = [self._collect(gradient), self.behind.sizes(0, 1)]
            return self.behind.add("ReduceSum", every, keepdims=0)
        before = self.step.name("sum")
        after = self.step.add("Gemm", [self._every_row(), gradient, before])
        total = self._added_up(before, after, (1, width))
        return self.behind.add("Squeeze", [total, self.behind.sizes(0)])

    def of_both_biases(self, gradient: str, width: int) -> str:
        """Σḡ twice: the biases of the input's side and of the state's have the same gradient."""
        return self.behind.add("Concat", [self.total(gradient, width)] * 2, axis=0)

    def _every_row(self) -> str:
        """Ones `(1, N)`: a product with them adds up rows, faster than a sum does."""
        if not self._ones:
            rows = self.to.add("Shape", [self.layer.x], start=1, end=2)
            size = self.to.add("Concat", [self.to.sizes(1), rows], axis=0)
            one = numpy_helper.from_array(np.ones(1, np.float32))
            self._ones = self.to.add("ConstantOfShape", [size], value=one)
        return self._ones

    def of_inputs(self, parts: Sequence[str], joined: Callable[[Sequence[str], NodeWriter], str]) -> str:
        """ḡ·W of all steps, `(T, N, I)`, where ḡ is what `joined` makes of tensors of the step."""
        if not self._of_x:
            return ""
        if self._within:
            return self._collect(self.step.add("MatMul", [joined(parts, self.step), self.layer.weight]))
        every = joined([self._collect(part) for part in parts], self.behind)
        return self.behind.add("MatMul", [every, self.layer.weight])

    def _collect(self, name: str) -> str:
        return self._collected.setdefault(name, self.to.name("collected"))

    def _added_up(self, before: str, after: str, shape: Sequence[int]) -> str:
        zeros = self.to.add("ConstantOfShape", [self.to.sizes(*shape)])
        self._sums.append(ScanState(zeros, before, after, self.to.name("last")))
        return self._sums[-1].last

    def write(self, states: Sequence[tuple[str, str]], of_last: Sequence[str]) -> list[str]:
        """Write the loop, which carries the gradients of states; those of the initial states.

        `states` are their names in the step, before and after; `of_last` those of the last states.
        """
        carried = [
            ScanState(self._start(gradient, like), *names, self.to.name("last"))
            for gradient, like, names in zip(of_last, self.layer.first, states, strict=True)
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

    def _start(self, gradient: str, like: str) -> str:
        """The gradient `(N, H)` of a last state, which is zero where nothing reads that state."""
        if gradient:
            return self.to.add("Squeeze", [gradient, self.to.sizes(0)])
        return self.to.add("Mul", [like, self.to.number(0)])


def write_gradients(
    node: onnx.NodeProto, layer: RecurrentLayer, to: Tape, back: Callable[[Loop], Sequence[str]]
) -> Adjoints:
    """Write the gradients of x, W, R, biases and initial states that are wanted.

    `back` writes a loop and gives the names of all of them, in this order.
    """
    places = [0, 1, 2, 3, *range(5, 5 + len(layer.first))]
    wanted = [i for i, place in enumerate(places) if to.wants(node, place)]
    few, many = to.body(), to.body()
    results = []
    for body in (few, many):
        loop = Loop(layer, body, within=body is many, of_x=0 in wanted)
        found = back(loop)
        results.append([found[i] for i in wanted])
        body.nodes = needed_nodes([*body.nodes, *loop.behind.nodes], results[-1])[0]
    outputs = [to.name("gradient") for _ in wanted]
    write_choice(are_fewer(MANY, layer, to), (few, many), (results[0], results[1]), outputs, to)
    adjoints: Adjoints = [None] * (places[-1] + 1)
    for i, value in zip(wanted, outputs, strict=True):
        name = value if i == 0 else to.add("Unsqueeze", [value, to.sizes(0)])
        adjoints[places[i]] = Adjoint(name, to.dims(node.input[places[i]], node))
    return adjoints
