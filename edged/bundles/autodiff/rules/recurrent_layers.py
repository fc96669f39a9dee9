"""Recurrent layers: forward with everything kept that the gradient needs, and the gradients themselves.

Definitions as in the ONNX operator specification. RNN (Elman 1990): hₜ = f(W·xₜ + R·hₜ₋₁ + b), f the
hyperbolic tangent or Relu.

LSTM (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000): i, o, f = σ(W·xₜ + R·hₜ₋₁ + b),
g = tanh(W·xₜ + R·hₜ₋₁ + b), cₜ = f∘cₜ₋₁ + i∘g, hₜ = o∘tanh(cₜ).

GRU (Cho et al. 2014): z, r = σ(W·xₜ + R·hₜ₋₁ + b) and hₜ = (1 − z)∘n + z∘hₜ₋₁, where
n = tanh(W·xₜ + b + r∘q) with q = R·hₜ₋₁ + b (`linear_before_reset` 1, PyTorch's form) or
n = tanh(W·xₜ + b + R·q) with q = r∘hₜ₋₁ (`linear_before_reset` 0).
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
from edged.bundles.autodiff.tape import Adjoint, Tape, untrainable
from edged.bundles.graph.writer import NodeWriter, ScanState, attributes_of, write_scan

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


# ---- LSTM ----------------------------------------------------------------------------------------------


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


@backward("LSTM")
def lstm(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    With dc = ∂loss/∂cₜ before and dc′ after the path over hₜ, and dh all that reaches hₜ:
    dc′ = dc + dh∘o∘(1 − tanh²cₜ), ḡ = (dc′∘g∘i(1−i), dh∘tanh cₜ∘o(1−o), dc′∘cₜ₋₁∘f(1−f), dc′∘i∘(1−g²)),
    and for the step before: dh = ∂loss/∂hₜ₋₁ + ḡ·R, dc = dc′∘f.
    """
    layer, kept = t.saved[node.name]
    of_states, *of_last = readers_of(gradients, node, t)
    return write_gradients(node, layer, t, lambda loop: _back_lstm(loop, kept, of_states, of_last))


def _lstm_factors(layer: RecurrentLayer, kept: Sequence[str], to: NodeWriter) -> list[str]:
    """o(1 − tanh²c), f, and side by side g∘i(1−i), tanh c∘o(1−o), cₜ₋₁∘f(1−f), i(1−g²), as a − a∘b."""
    iof, g, tanh, fc = kept
    i, o, f = to.split(iof, *[layer.hidden] * 3)
    ig, h = to.add("Mul", [i, g]), to.add("Mul", [o, tanh])
    gates = [lessened(ig, i, to), lessened(h, o, to), lessened(fc, f, to)]
    gates.append(to.add("Sub", [i, to.add("Mul", [ig, g])]))
    through = to.add("Sub", [o, to.add("Mul", [h, tanh])])
    return [through, f, to.add("Concat", gates, axis=-1)]


def _back_lstm(loop: Loop, kept: LstmStates, of_states: str, of_last: Sequence[str]) -> list[Result]:
    layer, to, step, width = loop.layer, loop.to, loop.step, 4 * loop.layer.hidden
    dh, dc = step.name("dh"), step.name("dc")
    through, f, factors = _lstm_factors(layer, [loop.of(name) for name in kept[:4]], step)
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


# ---- GRU -----------------------------------------------------------------------------------------------


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


@forward("GRU")
def gru_forward(node: onnx.NodeProto, t: Tape) -> None:
    """The layer, with what the gradient needs kept."""
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer, step = read_layer(node, t), t.body()
    weights = Weights.of(layer, t)
    x, before = step.name("x"), step.name("h")
    zr, z, n, q = _gru_gates(layer, x, before, weights, step)
    h = step.add("Add", [n, step.add("Mul", [z, step.add("Sub", [before, n])])])
    kept = GruStates.of(t.name("gru"))
    collected = dict(zip((zr, n, q, step.add("Identity", [before])), kept, strict=True))
    states = [ScanState(layer.first[0], before, h)]
    last = write_scan(step, t, states=states, sequences={x: layer.x}, collected=collected)
    t.saved[node.name] = layer, kept
    write_states(node, layer, kept.before, last, t)


def _gru_gates(
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
    z, of_n, of_gates = _factors_linear(layer, [loop.of(name) for name in kept], step)
    dh = loop.reaching(before, of_states)
    gates = step.add("Mul", [step.add("Concat", [dh] * 3, axis=-1), of_gates])
    n = step.add("Mul", [dh, of_n])
    after = step.add("Gemm", [gates, layer.recurrence, step.add("Mul", [dh, z])])

    def with_n(gates: str, of_n: str, axis: int, to: NodeWriter) -> str:
        # Only n takes something else from the input than from the state.
        zr = to.add("Slice", [gates, to.sizes(0), to.sizes(2 * hidden), to.sizes(axis)])
        return to.add("Concat", [zr, of_n], axis=axis)

    of_x = loop.of_inputs(lambda: with_n(gates, n, -1, step))
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
    z, r, of_n, of_z, of_r = _factors_reset(layer, [loop.of(name) for name in kept], step)
    dh = loop.reaching(before, of_states)
    n = step.add("Mul", [dh, of_n])
    dq = step.add("MatMul", [n, weights[1]])
    zr = step.add("Concat", [step.add("Mul", [dh, of_z]), step.add("Mul", [dq, of_r])], axis=-1)
    through = step.add("Add", [step.add("Mul", [dh, z]), step.add("Mul", [dq, r])])
    after = step.add("Gemm", [zr, weights[0], through])
    of_x = loop.of_inputs(lambda: step.add("Concat", [zr, n], axis=-1))
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
