"""Plain recurrent layers (Elman 1990): hₜ = f(W·xₜ + R·hₜ₋₁ + b), f the hyperbolic tangent or Relu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.rules.recurrent import (
    Loop,
    RecurrentLayer,
    Result,
    before_each,
    read_layer,
    readers_of,
    start_of,
    write_forward,
    write_gradients,
)
from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape
from edged.bundles.graph.writer import NodeWriter, ScanState, attributes_of, untrainable, write_scan

_ACTIVATIONS = {b"Tanh": "Tanh", b"Relu": "Relu"}


class RnnStates(NamedTuple):
    """What is kept of every step, `(T, N, H)` each: hₜ and hₜ₋₁."""

    h: str
    before: str


@forward("RNN")
def rnn_forward(node: onnx.NodeProto, t: Tape) -> None:
    """The layer, by the stock operator for batches of a few rows and step by step for larger ones."""
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    activation = _ACTIVATIONS.get(attributes_of(node).get("activations", [b"Tanh"])[0])
    if activation is None:
        raise untrainable(node, "its activation is neither Tanh nor Relu")
    layer, kept = read_layer(node, t), RnnStates(t.name("rnn"), t.name("rnn"))
    t.saved[node.name] = layer, kept, activation

    def at_once(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
        whole = [to.name("whole"), to.name("whole")]
        to.operator("RNN", layer.given, whole, hidden_size=layer.hidden, activations=[activation])
        h = to.add("Squeeze", [whole[0], to.sizes(1)])
        return [h, before_each(layer.first[0], h, to), to.add("Squeeze", [whole[1], to.sizes(0)])]

    def step_by_step(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
        bias = to.add("Add", to.split(layer.bias, *[layer.hidden] * 2)) if layer.bias else ""
        step = to.body()
        x, before = step.name("x"), step.name("h")
        of_x = step.add("Gemm", [x, layer.weight, *([bias] if bias else [])], transB=1)
        h = step.add(activation, [step.add("Gemm", [before, layer.recurrence, of_x], transB=1)])
        after = step.add("Identity", [h])
        collected = {h: to.name("kept"), step.add("Identity", [before]): to.name("kept")}
        states = [ScanState(layer.first[0], before, after)]
        last = write_scan(step, to, states=states, sequences={x: layer.x}, collected=collected)
        return [*collected.values(), *last]

    write_forward(node, layer, kept, kept.before, (at_once, step_by_step), t)


@backward("RNN")
def rnn(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    ḡ = dh∘f′, and for the step before dh = ∂loss/∂hₜ₋₁ + ḡ·R.
    f′ is 1 − hₜ² of the hyperbolic tangent, 1 where hₜ > 0 of Relu.
    """
    layer, kept, activation = t.saved[node.name]
    of_states, of_last = readers_of(gradients, node, t)

    def slopes(parts: Sequence[str], to: NodeWriter) -> list[str]:
        (h,) = parts
        if activation == "Relu":
            return [to.add("Sign", [h])]
        return [to.add("Sub", [to.number(1), to.add("Mul", [h, h])])]

    def back(loop: Loop) -> list[Result]:
        layer, step = loop.layer, loop.step
        dh = step.name("dh")
        (slope,) = loop.prepared([kept.h], slopes)
        gradient = step.add("Mul", [loop.reaching(dh, of_states), slope])
        after = step.add("MatMul", [gradient, layer.recurrence])
        of_x = loop.of_inputs([gradient], lambda parts, _: parts[0])
        of_weight = loop.product(gradient, layer.x, (layer.hidden, layer.width))
        of_recurrence = loop.product(gradient, kept.before, (layer.hidden, layer.hidden))
        total = loop.total(gradient, layer.hidden)
        first = start_of(of_last, layer.first[0], loop.to)
        last = loop.write([ScanState(first, dh, after)])
        # The biases of the input's side and of the state's have the same gradient.
        return [
            of_x,
            of_weight,
            of_recurrence,
            lambda: loop.to.add("Concat", [total()] * 2, axis=0),
            lambda: last[0],
        ]

    return write_gradients(node, layer, t, back)
