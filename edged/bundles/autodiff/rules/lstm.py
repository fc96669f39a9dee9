"""LSTM layers: forward with everything kept that the gradient needs, and the gradient itself.

Hochreiter and Schmidhuber 1997 with forget gates (Gers et al. 2000), as in the ONNX operator specification:
i, o, f = σ(W·xₜ + R·hₜ₋₁ + b), g = tanh(W·xₜ + R·hₜ₋₁ + b), cₜ = f∘cₜ₋₁ + i∘g, hₜ = o∘tanh(cₜ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import onnx

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.rules.recurrent import (
    Loop,
    RecurrentLayer,
    Result,
    are_fewer,
    before_each,
    lessened,
    read_layer,
    readers_of,
    rows_of,
    sequence_of,
    start_of,
    write_forward,
    write_gradients,
)
from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape
from edged.bundles.graph.writer import NodeWriter, ScanState, write_choice, write_scan

SHORT = 4  # steps that are not worth a block


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
    """The layer, with what the gradient needs kept.

    Batches of a few rows: the stock operator, whose states give all gates in one product, so that only
    cₜ is left to be computed step by step. Larger ones: every step in standard operators.
    """
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer, kept = read_layer(node, t), LstmStates.of(t.name("lstm"))
    t.saved[node.name] = layer, kept
    write_forward(node, layer, kept, kept.h, (_at_once, _step_by_step), t)


def _step_by_step(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    bias, step = _bias(layer, to), to.body()
    x, h, c = (step.name(hint) for hint in "xhc")
    iof, (i, o, f), g = _gates(layer, x, h, bias, step)
    fc = step.add("Mul", [f, c])
    new_c = step.add("Add", [step.add("Mul", [i, g]), fc])
    tanh = step.add("Tanh", [new_c])
    new_h = step.add("Mul", [o, tanh])
    collected = {name: to.name("kept") for name in (iof, g, tanh, fc, step.add("Identity", [h]))}
    states = [ScanState(layer.first[0], h, new_h), ScanState(layer.first[1], c, new_c)]
    last = write_scan(step, to, states=states, sequences={x: layer.x}, collected=collected)
    return [*collected.values(), *last]


def _at_once(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    whole = [to.name("whole") for _ in range(3)]
    to.operator("LSTM", layer.given, whole, hidden_size=layer.hidden)
    h = before_each(layer.first[0], to.add("Squeeze", [whole[0], to.sizes(1)]), to)
    iof, each, g = _gates(layer, rows_of(layer.x, to), rows_of(h, to), _bias(layer, to), to)
    i, _, f, new = (sequence_of(gate, layer, layer.hidden, to) for gate in (*each, g))
    ig = to.add("Mul", [i, new])
    fc = _remembered(f, ig, layer, to)
    tanh = to.add("Tanh", [to.add("Add", [ig, fc])])
    all_iof = sequence_of(iof, layer, 3 * layer.hidden, to)
    return [all_iof, new, tanh, fc, h, *(to.add("Squeeze", [name, to.sizes(0)]) for name in whole[1:])]


def _bias(layer: RecurrentLayer, to: NodeWriter) -> str:
    """The two biases of every gate added up."""
    if not layer.bias:
        return ""
    return to.add("Add", to.split(layer.bias, *[4 * layer.hidden] * 2))


def _gates(layer: RecurrentLayer, x: str, h: str, bias: str, to: NodeWriter) -> tuple[str, list[str], str]:
    """i, o and f side by side, each of them, and g, of xₜ `(rows, I)` and hₜ₋₁ `(rows, H)`."""
    of_x = to.add("Gemm", [x, layer.weight, *([bias] if bias else [])], transB=1)
    linear = to.add("Gemm", [h, layer.recurrence, of_x], transB=1)
    squashed, candidate = to.split(linear, 3 * layer.hidden, layer.hidden)
    iof = to.add("Sigmoid", [squashed])
    return iof, to.split(iof, *[layer.hidden] * 3), to.add("Tanh", [candidate])


def _remembered(f: str, ig: str, layer: RecurrentLayer, to: NodeWriter) -> str:
    """f∘cₜ₋₁ of all steps."""
    size = max(n for n in range(1, math.isqrt(layer.length) + 1) if layer.length % n == 0)
    if size < SHORT:
        return _one_by_one(f, ig, layer, to)
    one, more, result = to.body(), to.body(), to.name("remembered")
    results = [_in_blocks(f, ig, size, layer, one)], [_one_by_one(f, ig, layer, more)]
    write_choice(are_fewer(2, layer, to), (one, more), results, [result], to)
    return result


def _one_by_one(f: str, ig: str, layer: RecurrentLayer, to: NodeWriter) -> str:
    step = to.body()
    before, forget, new = step.name("c"), step.name("f"), step.name("ig")
    fc = step.add("Mul", [forget, before])
    states = [ScanState(layer.first[1], before, step.add("Add", [fc, new]))]
    result = to.name("remembered")
    write_scan(step, to, states=states, sequences={forget: f, new: ig}, collected={fc: result})
    return result


def _in_blocks(f: str, ig: str, size: int, layer: RecurrentLayer, to: NodeWriter) -> str:
    """The same for one row, blocks of `size` steps side by side: what a Scan costs is its rounds.

    Behind the start s of a block cₜ = lₜ + pₜ∘cₛ, where l goes as c but from 0, and p = ∏ f: Blelloch 1990,
    "Prefix sums and their applications".
    """
    shape = layer.length // size, layer.hidden
    apart, step = to.sizes(shape[0], size, shape[1]), to.body()
    rounds = [to.add("Transpose", [to.add("Reshape", [name, apart])], perm=[1, 0, 2]) for name in (f, ig)]
    local, share, forget, new = (step.name(hint) for hint in ("l", "p", "f", "ig"))
    fl, fp = (step.add("Mul", [forget, name]) for name in (local, share))
    zeros = to.add("ConstantOfShape", [to.sizes(*shape)])
    states = [
        ScanState(zeros, local, step.add("Add", [fl, new])),
        ScanState(to.add("Exp", [zeros]), share, fp),
    ]
    collected = {fl: to.name("local"), step.add("Identity", [fp]): to.name("share")}
    ends = write_scan(
        step, to, states=states, sequences=dict(zip((forget, new), rounds, strict=True)), collected=collected
    )
    last, through = (to.add("Unsqueeze", [end, to.sizes(1)]) for end in ends)
    after = to.add("Add", [_one_by_one(through, last, layer, to), last])
    starts = to.add("Squeeze", [before_each(layer.first[1], after, to), to.sizes(1)])
    locals_, shares = collected.values()
    whole = to.add("Add", [locals_, to.add("Mul", [shares, starts])])
    return to.add("Reshape", [to.add("Transpose", [whole], perm=[1, 0, 2]), to.sizes(-1, 1, layer.hidden)])


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
    through, f, factors = loop.prepared([kept.iof, kept.g, kept.tanh, kept.fc], partial(_factors, layer))
    all_h = loop.reaching(dh, of_states)
    all_c = step.add("Add", [dc, step.add("Mul", [all_h, through])])
    paths = step.add("Concat", [all_c, all_h, all_c, all_c], axis=-1)
    gradient = step.add("Mul", [paths, factors])
    after = step.add("MatMul", [gradient, layer.recurrence]), step.add("Mul", [all_c, f])
    of_x = loop.of_inputs([gradient], lambda parts, _: parts[0])
    of_weight = loop.product(gradient, layer.x, (width, layer.width))
    of_recurrence = loop.product(gradient, kept.h, (width, layer.hidden))
    total = loop.total(gradient, width)
    firsts = [start_of(name, like, to) for name, like in zip(of_last, layer.first, strict=True)]
    last = loop.write([ScanState(*names) for names in zip(firsts, (dh, dc), after, strict=True)])

    def of_bias() -> str:
        # The biases of the input's side and of the state's have the same gradient.
        return to.add("Concat", [total()] * 2, axis=0)

    return [of_x, of_weight, of_recurrence, of_bias, lambda: last[0], lambda: last[1]]
