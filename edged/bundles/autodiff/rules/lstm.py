"""LSTM layers: forward with everything kept that the gradient needs, and the gradient itself.

Hochreiter and Schmidhuber 1997 with forget gates (Gers et al. 2000), as in the ONNX operator specification:
i, o, f = σ(W·xₜ + R·hₜ₋₁ + b), g = tanh(W·xₜ + R·hₜ₋₁ + b), cₜ = f∘cₜ₋₁ + i∘g, hₜ = o∘tanh(cₜ).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.rules.recurrent import (
    Loop,
    RecurrentLayer,
    lessened,
    read_layer,
    readers_of,
    start_of,
    write_gradients,
    write_states,
)
from edged.bundles.autodiff.tape import Adjoint, Tape
from edged.bundles.graph.writer import NodeWriter, ScanState, write_scan

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.rules.recurrent import Result


class LstmStates(NamedTuple):
    """What is kept of every step: i, o and f side by side `(T, N, 3·H)`; g, tanh cₜ, f∘cₜ₋₁ and hₜ₋₁."""

    iof: str
    g: str
    tanh: str
    fc: str
    h: str

    @classmethod
    def of(cls, name: str) -> LstmStates:
        """Build the names of the tensors of one cell."""
        return cls(*(f"{name}.{part}" for part in cls._fields))


# ---- forward ----------------------------------------------------------------------------------


@forward("LSTM")
def lstm_forward(node: onnx.NodeProto, t: Tape) -> None:
    """The layer, with what the gradient needs kept."""
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer, step = read_layer(node, t), t.body()
    bias = t.add("Add", t.split(layer.bias, *[4 * layer.hidden] * 2)) if layer.bias else ""
    x, h, c = (step.name(hint) for hint in "xhc")
    of_x = step.add("Gemm", [x, layer.weight, *([bias] if bias else [])], transB=1)
    linear = step.add("Gemm", [h, layer.recurrence, of_x], transB=1)
    squashed, candidate = step.split(linear, 3 * layer.hidden, layer.hidden)
    iof, g = step.add("Sigmoid", [squashed]), step.add("Tanh", [candidate])
    i, o, f = step.split(iof, *[layer.hidden] * 3)
    fc = step.add("Mul", [f, c])
    new_c = step.add("Add", [step.add("Mul", [i, g]), fc])
    tanh = step.add("Tanh", [new_c])
    new_h = step.add("Mul", [o, tanh])
    kept = LstmStates.of(t.name("lstm"))
    collected = dict(zip((iof, g, tanh, fc, step.add("Identity", [h])), kept, strict=True))
    states = [ScanState(layer.first[0], h, new_h), ScanState(layer.first[1], c, new_c)]
    last = write_scan(step, t, states=states, sequences={x: layer.x}, collected=collected)
    t.saved[node.name] = layer, kept
    write_states(node, layer, kept.h, last, t)


# ---- gradient ---------------------------------------------------------------------------------


@backward("LSTM")
def lstm(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    With dc = ∂loss/∂cₜ before and dc′ after the path over hₜ, and dh all that reaches hₜ:
    dc′ = dc + dh∘o∘(1 − tanh²cₜ), ḡ = (dc′∘g∘i(1−i), dh∘tanh cₜ∘o(1−o), dc′∘cₜ₋₁∘f(1−f), dc′∘i∘(1−g²)),
    and for the step before: dh = ∂loss/∂hₜ₋₁ + ḡ·R, dc = dc′∘f.
    """
    layer, kept = t.saved[node.name]
    of_states, *of_last = readers_of(gradients, node, t)
    return write_gradients(node, layer, t, lambda loop: _back(loop, kept, of_states, of_last))


def _factors(layer: RecurrentLayer, kept: Sequence[str], to: NodeWriter) -> list[str]:
    """o(1 − tanh²c), f, and side by side g∘i(1−i), tanh c∘o(1−o), cₜ₋₁∘f(1−f), i(1−g²), as a − a∘b."""
    iof, g, tanh, fc = kept
    i, o, f = to.split(iof, *[layer.hidden] * 3)
    ig, h = to.add("Mul", [i, g]), to.add("Mul", [o, tanh])
    gates = [lessened(ig, i, to), lessened(h, o, to), lessened(fc, f, to)]
    gates.append(to.add("Sub", [i, to.add("Mul", [ig, g])]))
    through = to.add("Sub", [o, to.add("Mul", [h, tanh])])
    return [through, f, to.add("Concat", gates, axis=-1)]


def _back(loop: Loop, kept: LstmStates, of_states: str, of_last: Sequence[str]) -> list[Result]:
    layer, to, step, width = loop.layer, loop.to, loop.step, 4 * loop.layer.hidden
    dh, dc = step.name("dh"), step.name("dc")
    through, f, factors = _factors(layer, [loop.of(name) for name in kept[:4]], step)
    all_h = loop.reaching(dh, of_states)
    all_c = step.add("Add", [dc, step.add("Mul", [all_h, through])])
    paths = step.add("Concat", [all_c, all_h, all_c, all_c], axis=-1)
    gradient = step.add("Mul", [paths, factors])
    after = step.add("MatMul", [gradient, layer.recurrence]), step.add("Mul", [all_c, f])
    of_x = loop.of_inputs(lambda: gradient)
    of_weight = loop.product(gradient, layer.x, (width, layer.width))
    of_recurrence = loop.product(gradient, kept.h, (width, layer.hidden))
    total = loop.total(gradient, width)
    firsts = [start_of(name, like, to) for name, like in zip(of_last, layer.first, strict=True)]
    last = loop.write([ScanState(*names) for names in zip(firsts, (dh, dc), after, strict=True)])

    def of_bias() -> str:
        # The biases of the input's side and of the state's have the same gradient.
        return to.add("Concat", [total()] * 2, axis=0)

    return [of_x, of_weight, of_recurrence, of_bias, lambda: last[0], lambda: last[1]]
