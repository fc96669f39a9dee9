"""GRU layers: forward with everything kept that the gradient needs, and the gradient itself.

Cho et al. 2014, as in the ONNX operator specification: z, r = σ(W·xₜ + R·hₜ₋₁ + b) and
hₜ = (1 − z)∘n + z∘hₜ₋₁, where n = tanh(W·xₜ + b + r∘q) with q = R·hₜ₋₁ + b (`linear_before_reset` 1,
PyTorch's form) or n = tanh(W·xₜ + b + R·q) with q = r∘hₜ₋₁ (`linear_before_reset` 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import onnx

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.rules.recurrent import (
    Loop,
    RecurrentLayer,
    Result,
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
from edged.bundles.graph.writer import NodeWriter, ScanState, write_scan


class GruStates(NamedTuple):
    """What is kept of every step: z and r side by side `(T, N, 2·H)`; n, q and hₜ₋₁, `(T, N, H)` each."""

    zr: str
    n: str
    q: str
    before: str

    @classmethod
    def of(cls, name: str) -> GruStates:
        """Build the names of the tensors of one cell."""
        return cls(*(f"{name}.{part}" for part in cls._fields))


class Weights(NamedTuple):
    """W and R of z and r together, and of n; biases, an empty name for one that is not there."""

    x_zr: str
    x_n: str
    zr: str
    n: str
    bias_zr: str
    bias_n: str
    bias_q: str

    @classmethod
    def of(cls, layer: RecurrentLayer, to: NodeWriter) -> Weights:
        """The layer's; q has a bias of its own where it is R·hₜ₋₁ + b."""
        sizes = 2 * layer.hidden, layer.hidden
        ours, states = (to.split(matrix, *sizes, axis=0) for matrix in (layer.weight, layer.recurrence))
        biases = ["", "", ""]
        if layer.bias:
            x_zr, x_n, zr, q = to.split(layer.bias, *sizes, *sizes)
            of_n = [x_n, q] if layer.linear_before_reset else [to.add("Add", [x_n, q]), ""]
            biases = [to.add("Add", [x_zr, zr]), *of_n]
        return cls._make([*ours, *states, *biases])


# ---- forward ----------------------------------------------------------------------------------


@forward("GRU")
def gru_forward(node: onnx.NodeProto, t: Tape) -> None:
    """The layer, with what the gradient needs kept.

    Batches of a few rows: the stock operator, whose states give all gates in a few products. Larger
    ones: every step in standard operators.
    """
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer, kept = read_layer(node, t), GruStates.of(t.name("gru"))
    t.saved[node.name] = layer, kept
    write_forward(node, layer, kept, kept.before, (_at_once, _step_by_step), t)


def _step_by_step(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    weights, step = Weights.of(layer, to), to.body()
    x, before = step.name("x"), step.name("h")
    zr, z, n, q = _gates(layer, x, before, weights, step)
    h = step.add("Add", [n, step.add("Mul", [z, step.add("Sub", [before, n])])])
    collected = {name: to.name("kept") for name in (zr, n, q, step.add("Identity", [before]))}
    states = [ScanState(layer.first[0], before, h)]
    last = write_scan(step, to, states=states, sequences={x: layer.x}, collected=collected)
    return [*collected.values(), *last]


def _at_once(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    whole = [to.name("whole"), to.name("whole")]
    linear = int(layer.linear_before_reset)
    to.operator("GRU", layer.given, whole, hidden_size=layer.hidden, linear_before_reset=linear)
    before = before_each(layer.first[0], to.add("Squeeze", [whole[0], to.sizes(1)]), to)
    weights = Weights.of(layer, to)
    zr, _, n, q = _gates(layer, rows_of(layer.x, to), rows_of(before, to), weights, to)
    parts = zip((zr, n, q), (2, 1, 1), strict=True)
    kept = [sequence_of(part, layer, times * layer.hidden, to) for part, times in parts]
    return [*kept, before, to.add("Squeeze", [whole[1], to.sizes(0)])]


def _gates(
    layer: RecurrentLayer, x: str, before: str, weights: Weights, to: NodeWriter
) -> tuple[str, str, str, str]:
    """Side by side z and r; z, n and q, of xₜ `(rows, I)` and hₜ₋₁ `(rows, H)`."""

    def affine(values: str, matrix: str, bias: str) -> str:
        return to.add("Gemm", [values, matrix, *([bias] if bias else [])], transB=1)

    zr = to.add("Sigmoid", [affine(before, weights.zr, affine(x, weights.x_zr, weights.bias_zr))])
    z, r = to.split(zr, layer.hidden, layer.hidden)
    of_x = affine(x, weights.x_n, weights.bias_n)
    if layer.linear_before_reset:
        q = affine(before, weights.n, weights.bias_q)
        return zr, z, to.add("Tanh", [to.add("Add", [of_x, to.add("Mul", [r, q])])]), q
    q = to.add("Mul", [r, before])
    return zr, z, to.add("Tanh", [affine(q, weights.n, of_x)]), q


# ---- gradient ---------------------------------------------------------------------------------


@backward("GRU")
def gru(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    With dh all that reaches hₜ: ḡ_z = dh∘(hₜ₋₁ − n)∘z(1−z), ḡ_n = dh∘(1−z)∘(1−n²), and
    ḡ_r = ḡ_n∘q∘r(1−r), or dq∘q∘(1−r) where dq = ḡ_n·R_n is the gradient of q = r∘hₜ₋₁. For the step
    before: dh = ∂loss/∂hₜ₋₁ + dh∘z + (ḡ_z, ḡ_r, ḡ_n∘r)·R, or … + (ḡ_z, ḡ_r)·R_zr + dq∘r.
    """
    layer, kept = t.saved[node.name]
    of_states, of_last = readers_of(gradients, node, t)
    back = _back_linear if layer.linear_before_reset else _back_reset
    return write_gradients(node, layer, t, lambda loop: back(loop, kept, of_states, of_last))


def _of_gates(layer: RecurrentLayer, kept: Sequence[str], to: NodeWriter) -> tuple[str, str, str, str]:
    """z, r, and what dh is multiplied with for n and z: (1−z)(1−n²) and (hₜ₋₁ − n)∘z(1−z)."""
    zr, n, _, before = kept
    z, r = to.split(zr, layer.hidden, layer.hidden)
    rest = to.add("Sub", [to.number(1), z])
    of_z = to.add("Mul", [to.add("Mul", [to.add("Sub", [before, n]), z]), rest])
    return z, r, lessened(rest, to.add("Mul", [n, n]), to), of_z


def _factors_linear(layer: RecurrentLayer, kept: Sequence[str], to: NodeWriter) -> list[str]:
    z, r, of_n, of_z = _of_gates(layer, kept, to)
    of_q = to.add("Mul", [of_n, r])
    of_r = lessened(to.add("Mul", [of_q, kept[2]]), r, to)
    return [z, of_n, to.add("Concat", [of_z, of_r, of_q], axis=-1)]


def _back_linear(loop: Loop, kept: GruStates, of_states: str, of_last: str) -> list[Result]:
    """The form with `linear_before_reset` 1."""
    layer, to, step, hidden = loop.layer, loop.to, loop.step, loop.layer.hidden
    before = step.name("dh")
    z, of_n, of_gates = loop.prepared(kept, partial(_factors_linear, layer))
    dh = loop.reaching(before, of_states)
    gates = step.add("Mul", [step.add("Concat", [dh] * 3, axis=-1), of_gates])
    n = step.add("Mul", [dh, of_n])
    after = step.add("Gemm", [gates, layer.recurrence, step.add("Mul", [dh, z])])

    def with_n(gates: str, of_n: str, axis: int, to: NodeWriter) -> str:
        # Only n takes something else from the input than from the state.
        zr = to.add("Slice", [gates, to.sizes(0), to.sizes(2 * hidden), to.sizes(axis)])
        return to.add("Concat", [zr, of_n], axis=axis)

    of_x = loop.of_inputs([gates, n], lambda parts, to: with_n(parts[0], parts[1], -1, to))
    of_weight = loop.product(gates, layer.x, (3 * hidden, layer.width))
    of_weight_n = loop.product(n, layer.x, (hidden, layer.width))
    of_recurrence = loop.product(gates, kept.before, (3 * hidden, hidden))
    total, total_n = loop.total(gates, 3 * hidden), loop.total(n, hidden)
    (first,) = loop.write([ScanState(start_of(of_last, layer.first[0], to), before, after)])

    def of_bias() -> str:
        sums = total()
        return to.add("Concat", [with_n(sums, total_n(), 0, to), sums], axis=0)

    return [
        of_x,
        lambda: with_n(of_weight(), of_weight_n(), 0, to),
        of_recurrence,
        of_bias,
        lambda: first,
    ]


def _factors_reset(layer: RecurrentLayer, kept: Sequence[str], to: NodeWriter) -> list[str]:
    z, r, of_n, of_z = _of_gates(layer, kept, to)
    return [z, r, of_n, of_z, lessened(kept[2], r, to)]


def _back_reset(loop: Loop, kept: GruStates, of_states: str, of_last: str) -> list[Result]:
    """The form with `linear_before_reset` 0."""
    layer, to, step, hidden = loop.layer, loop.to, loop.step, loop.layer.hidden
    weights = to.split(layer.recurrence, 2 * hidden, hidden, axis=0)
    before = step.name("dh")
    z, r, of_n, of_z, of_r = loop.prepared(kept, partial(_factors_reset, layer))
    dh = loop.reaching(before, of_states)
    n = step.add("Mul", [dh, of_n])
    dq = step.add("MatMul", [n, weights[1]])
    zr = step.add("Concat", [step.add("Mul", [dh, of_z]), step.add("Mul", [dq, of_r])], axis=-1)
    through = step.add("Add", [step.add("Mul", [dh, z]), step.add("Mul", [dq, r])])
    after = step.add("Gemm", [zr, weights[0], through])
    of_x = loop.of_inputs([zr, n], lambda parts, to: to.add("Concat", [*parts], axis=-1))
    parts = (zr, 2 * hidden, kept.before), (n, hidden, kept.q)
    of_weight = [loop.product(part, layer.x, (size, layer.width)) for part, size, _ in parts]
    of_recurrence = [loop.product(part, values, (size, hidden)) for part, size, values in parts]
    totals = [loop.total(part, size) for part, size, _ in parts]
    (first,) = loop.write([ScanState(start_of(of_last, layer.first[0], to), before, after)])

    def below(made: Sequence[Result]) -> str:
        return to.add("Concat", [one() for one in made], axis=0)

    return [
        of_x,
        lambda: below(of_weight),
        lambda: below(of_recurrence),
        lambda: below(totals * 2),
        lambda: first,
    ]
