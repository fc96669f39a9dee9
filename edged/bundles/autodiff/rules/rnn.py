"""Plain recurrent layers (Elman 1990): hₜ = f(W·xₜ + R·hₜ₋₁ + b), f the hyperbolic tangent or Relu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.rules.recurrent import (
    Loop,
    read_layer,
    readers_of,
    start_of,
    write_gradients,
    write_states,
)
from edged.bundles.autodiff.tape import Adjoint, Tape, untrainable
from edged.bundles.graph.writer import ScanState, attributes_of, write_scan

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.rules.recurrent import Result

_ACTIVATIONS = {b"Tanh": "Tanh", b"Relu": "Relu"}


class RnnStates(NamedTuple):
    """What is kept of every step, `(T, N, H)` each: hₜ and hₜ₋₁."""

    h: str
    before: str


@forward("RNN")
def rnn_forward(node: onnx.NodeProto, t: Tape) -> None:
    """The layer, with what the gradient needs kept."""
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    activation = _ACTIVATIONS.get(attributes_of(node).get("activations", [b"Tanh"])[0])
    if activation is None:
        raise untrainable(node, "its activation is neither Tanh nor Relu")
    layer, step = read_layer(node, t), t.body()
    bias = t.add("Add", t.split(layer.bias, *[layer.hidden] * 2)) if layer.bias else ""
    x, before = step.name("x"), step.name("h")
    of_x = step.add("Gemm", [x, layer.weight, *([bias] if bias else [])], transB=1)
    h = step.add(activation, [step.add("Gemm", [before, layer.recurrence, of_x], transB=1)])
    states = [ScanState(layer.first[0], before, step.add("Identity", [h]))]
    kept = RnnStates(t.name("kept"), t.name("kept"))
    collected = {h: kept.h, step.add("Identity", [before]): kept.before}
    last = write_scan(step, t, states=states, sequences={x: layer.x}, collected=collected)
    t.saved[node.name] = layer, kept, activation
    write_states(node, layer, kept.before, last, t)


@backward("RNN")
def rnn(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    ḡ = dh∘f′, and for the step before dh = ∂loss/∂hₜ₋₁ + ḡ·R.
    f′ is 1 − hₜ² of the hyperbolic tangent, 1 where hₜ > 0 of Relu.
    """
    layer, kept, activation = t.saved[node.name]
    of_states, of_last = readers_of(gradients, node, t)

    def back(loop: Loop) -> list[Result]:
        layer, step = loop.layer, loop.step
        dh = step.name("dh")
        h = loop.of(kept.h)
        if activation == "Relu":
            slope = step.add("Sign", [h])
        else:
            slope = step.add("Sub", [step.number(1), step.add("Mul", [h, h])])
        gradient = step.add("Mul", [loop.reaching(dh, of_states), slope])
        after = step.add("MatMul", [gradient, layer.recurrence])
        of_x = loop.of_inputs(lambda: gradient)
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
