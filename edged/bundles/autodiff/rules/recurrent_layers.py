"""LSTM, GRU and RNN layers: every step written out, and what the gradient needs of it kept.

Equations are those of the ONNX operator specification.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.rules.recurrent import (
    Loop,
    RecurrentLayer,
    affine,
    both_biases,
    lessened,
    read_layer,
    write_steps,
)
from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape
from edged.bundles.graph.writer import NodeWriter, attributes_of, untrainable

# ---- LSTM -------------------------------------------------------------------------------------


@forward("LSTM")
def lstm_forward(node: onnx.NodeProto, t: Tape) -> None:
    """Hochreiter and Schmidhuber 1997 with forget gates (Gers et al. 2000).

    i, o, f = σ(W·xₜ + R·hₜ₋₁ + b), g = tanh(W·xₜ + R·hₜ₋₁ + b), cₜ = f∘cₜ₋₁ + i∘g, hₜ = o∘tanh(cₜ). Kept are
    i, o and f side by side, g, tanh cₜ, f∘cₜ₋₁ and hₜ₋₁.
    """
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer = read_layer(node, t)
    bias, step = both_biases(layer, 4, t), t.body()
    x, h, c = (step.name(hint) for hint in "xhc")
    linear = affine(h, layer.recurrence, affine(x, layer.weight, bias, step), step)
    squashed, candidate = step.split(linear, 3 * layer.hidden, layer.hidden)
    iof, g = step.add("Sigmoid", [squashed]), step.add("Tanh", [candidate])
    i, o, f = step.split(iof, *[layer.hidden] * 3)
    fc = step.add("Mul", [f, c])
    new_c = step.add("Add", [step.add("Mul", [i, g]), fc])
    tanh = step.add("Tanh", [new_c])
    states = [(h, step.add("Mul", [o, tanh])), (c, new_c)]
    t.saved[node.name] = layer, write_steps(node, layer, step, x, states, (iof, g, tanh, fc), t)


@backward("LSTM")
def lstm(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Of an LSTM.

    With dc = ∂loss/∂cₜ before and dc′ after the path over hₜ, and dh all that reaches hₜ:
    dc′ = dc + dh∘o∘(1 − tanh²cₜ), ḡ = (dc′∘g∘i(1−i), dh∘tanh cₜ∘o(1−o), dc′∘cₜ₋₁∘f(1−f), dc′∘i∘(1−g²)),
    and for the step before: dh = ∂loss/∂hₜ₋₁ + ḡ·R, dc = dc′∘f.
    """
    layer, (*kept, before) = t.saved[node.name]
    loop = Loop(node, layer, t)
    step, width = loop.step, 4 * layer.hidden
    dh, dc = step.name("dh"), step.name("dc")
    through, f, factors = _lstm_factors(layer, [loop.of(name) for name in kept], step)
    all_h = loop.reaching(dh, gradients[0])
    all_c = step.add("Add", [dc, step.add("Mul", [all_h, through])])
    paths = step.add("Concat", [all_c, all_h, all_c, all_c], axis=-1)
    gradient = step.add("Mul", [paths, factors])
    after = step.add("MatMul", [gradient, layer.recurrence]), step.add("Mul", [all_c, f])
    found = [
        loop.of_inputs(gradient),
        loop.product(gradient, layer.x, (width, layer.width)),
        loop.product(gradient, before, (width, layer.hidden)),
        # The biases of the input's side and of the state's have the same gradient.
        t.add("Concat", [loop.total(gradient, width)] * 2, axis=0),
    ]
    return loop.gradients(*found, *loop.write(list(zip((dh, dc), after, strict=True)), gradients[1:]))


def _lstm_factors(layer: RecurrentLayer, kept: Sequence[str], step: NodeWriter) -> tuple[str, str, str]:
    """o(1 − tanh²c), f, and side by side g∘i(1−i), tanh c∘o(1−o), cₜ₋₁∘f(1−f), i(1−g²), as a − a∘b."""
    iof, g, tanh, fc = kept
    i, o, f = step.split(iof, *[layer.hidden] * 3)
    ig, h = step.add("Mul", [i, g]), step.add("Mul", [o, tanh])
    gates = [lessened(ig, i, step), lessened(h, o, step), lessened(fc, f, step)]
    gates.append(step.add("Sub", [i, step.add("Mul", [ig, g])]))
    through = step.add("Sub", [o, step.add("Mul", [h, tanh])])
    return through, f, step.add("Concat", gates, axis=-1)


# ---- GRU --------------------------------------------------------------------------------------


@forward("GRU")
def gru_forward(node: onnx.NodeProto, t: Tape) -> None:
    """Cho et al. 2014: z, r = σ(W·xₜ + R·hₜ₋₁ + b) and hₜ = (1 − z)∘n + z∘hₜ₋₁.

    n = tanh(W·xₜ + b + r∘q) with q = R·hₜ₋₁ + b (`linear_before_reset` 1, PyTorch's form) or
    n = tanh(W·xₜ + b + R·q) with q = r∘hₜ₋₁ (`linear_before_reset` 0).

    Kept are z and r side by side, n, q and hₜ₋₁.
    """
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer = read_layer(node, t)
    sizes, step = (2 * layer.hidden, layer.hidden), t.body()
    x_zr, x_n = t.split(layer.weight, *sizes, axis=0)
    of_zr, of_n = t.split(layer.recurrence, *sizes, axis=0)
    bias_zr, bias_n, bias_q = _gru_biases(layer, t)
    x, before = step.name("x"), step.name("h")
    zr = step.add("Sigmoid", [affine(before, of_zr, affine(x, x_zr, bias_zr, step), step)])
    z, r = step.split(zr, layer.hidden, layer.hidden)
    of_x = affine(x, x_n, bias_n, step)
    if layer.linear_before_reset:
        q = affine(before, of_n, bias_q, step)
        linear = step.add("Add", [of_x, step.add("Mul", [r, q])])
    else:
        q = step.add("Mul", [r, before])
        linear = affine(q, of_n, of_x, step)
    n = step.add("Tanh", [linear])
    h = step.add("Add", [n, step.add("Mul", [z, step.add("Sub", [before, n])])])
    t.saved[node.name] = layer, write_steps(node, layer, step, x, [(before, h)], (zr, n, q), t)


def _gru_biases(layer: RecurrentLayer, t: Tape) -> list[str]:
    """The biases of z and r together, of n, and of q, which has one of its own where it is R·hₜ₋₁ + b."""
    if not layer.bias:
        return ["", "", ""]
    x_zr, x_n, zr, q = t.split(layer.bias, *[2 * layer.hidden, layer.hidden] * 2)
    of_n = [x_n, q] if layer.linear_before_reset else [t.add("Add", [x_n, q]), ""]
    return [t.add("Add", [x_zr, zr]), *of_n]


@backward("GRU")
def gru(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Of a GRU.

    With dh all that reaches hₜ: ḡ_z = dh∘(hₜ₋₁ − n)∘z(1−z), ḡ_n = dh∘(1−z)∘(1−n²), and
    ḡ_r = ḡ_n∘q∘r(1−r), or dq∘q∘(1−r) where dq = ḡ_n·R_n is the gradient of q = r∘hₜ₋₁. For the step
    before: dh = ∂loss/∂hₜ₋₁ + dh∘z + (ḡ_z, ḡ_r, ḡ_n∘r)·R, or … + (ḡ_z, ḡ_r)·R_zr + dq∘r.
    """
    layer, kept = t.saved[node.name]
    return (_gru_linear if layer.linear_before_reset else _gru_reset)(Loop(node, layer, t), kept, gradients)


def _of_gates(loop: Loop, kept: Sequence[str]) -> tuple[str, str, str, str, str]:
    """z, r, q, and what dh is multiplied with for n and z: (1−z)(1−n²) and (hₜ₋₁ − n)∘z(1−z)."""
    step = loop.step
    zr, n, q, before = (loop.of(name) for name in kept)
    z, r = step.split(zr, loop.layer.hidden, loop.layer.hidden)
    rest = step.add("Sub", [step.number(1), z])
    of_z = step.add("Mul", [step.add("Mul", [step.add("Sub", [before, n]), z]), rest])
    return z, r, q, lessened(rest, step.add("Mul", [n, n]), step), of_z


def _gru_linear(loop: Loop, kept: Sequence[str], gradients: Sequence[Adjoint | None]) -> Adjoints:
    """The form with `linear_before_reset` 1."""
    layer, t, step, hidden = loop.layer, loop.to, loop.step, loop.layer.hidden
    before = step.name("dh")
    z, r, q, of_n, of_z = _of_gates(loop, kept)
    of_q = step.add("Mul", [of_n, r])
    factors = step.add("Concat", [of_z, lessened(step.add("Mul", [of_q, q]), r, step), of_q], axis=-1)
    dh = loop.reaching(before, gradients[0])
    gates = step.add("Mul", [step.add("Concat", [dh] * 3, axis=-1), factors])
    n = step.add("Mul", [dh, of_n])
    after = step.add("Gemm", [gates, layer.recurrence, step.add("Mul", [dh, z])])

    def with_n(gates: str, of_n: str, axis: int, to: NodeWriter) -> str:
        # Only n takes something else from the input than from the state.
        zr = to.add("Slice", [gates, to.sizes(0), to.sizes(2 * hidden), to.sizes(axis)])
        return to.add("Concat", [zr, of_n], axis=axis)

    sums = loop.total(gates, 3 * hidden)
    of_weight = loop.product(gates, layer.x, (3 * hidden, layer.width))
    found = [
        loop.of_inputs(with_n(gates, n, -1, step)),
        with_n(of_weight, loop.product(n, layer.x, (hidden, layer.width)), 0, t),
        loop.product(gates, kept[-1], (3 * hidden, hidden)),
        t.add("Concat", [with_n(sums, loop.total(n, hidden), 0, t), sums], axis=0),
    ]
    return loop.gradients(*found, *loop.write([(before, after)], gradients[1:]))


def _gru_reset(loop: Loop, kept: Sequence[str], gradients: Sequence[Adjoint | None]) -> Adjoints:
    """The form with `linear_before_reset` 0."""
    layer, t, step, hidden = loop.layer, loop.to, loop.step, loop.layer.hidden
    weights = t.split(layer.recurrence, 2 * hidden, hidden, axis=0)
    before = step.name("dh")
    z, r, q, of_n, of_z = _of_gates(loop, kept)
    dh = loop.reaching(before, gradients[0])
    n = step.add("Mul", [dh, of_n])
    dq = step.add("MatMul", [n, weights[1]])
    of_r = step.add("Mul", [dq, lessened(q, r, step)])
    zr = step.add("Concat", [step.add("Mul", [dh, of_z]), of_r], axis=-1)
    through = step.add("Add", [step.add("Mul", [dh, z]), step.add("Mul", [dq, r])])
    after = step.add("Gemm", [zr, weights[0], through])
    parts = (zr, 2 * hidden, kept[-1]), (n, hidden, kept[2])
    of_weight = [loop.product(part, layer.x, (size, layer.width)) for part, size, _ in parts]
    of_recurrence = [loop.product(part, values, (size, hidden)) for part, size, values in parts]
    totals = [loop.total(part, size) for part, size, _ in parts]
    found = [
        loop.of_inputs(step.add("Concat", [zr, n], axis=-1)),
        *(t.add("Concat", below, axis=0) for below in (of_weight, of_recurrence, totals * 2)),
    ]
    return loop.gradients(*found, *loop.write([(before, after)], gradients[1:]))


# ---- RNN --------------------------------------------------------------------------------------

_ACTIVATIONS = {b"Tanh": "Tanh", b"Relu": "Relu"}


@forward("RNN")
def rnn_forward(node: onnx.NodeProto, t: Tape) -> None:
    """Elman 1990: hₜ = f(W·xₜ + R·hₜ₋₁ + b), f the hyperbolic tangent or Relu. Kept are hₜ and hₜ₋₁."""
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    activation = _ACTIVATIONS.get(attributes_of(node).get("activations", [b"Tanh"])[0])
    if activation is None:
        raise untrainable(node, "its activation is neither Tanh nor Relu")
    layer = read_layer(node, t)
    bias, step = both_biases(layer, 1, t), t.body()
    x, before = step.name("x"), step.name("h")
    linear = affine(before, layer.recurrence, affine(x, layer.weight, bias, step), step)
    h = step.add(activation, [linear])
    after = step.add("Identity", [h])  # an output of the loop is a state or kept, not both
    t.saved[node.name] = layer, write_steps(node, layer, step, x, [(before, after)], (h,), t), activation


@backward("RNN")
def rnn(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Of a plain layer: ḡ = dh∘f′, and for the step before dh = ∂loss/∂hₜ₋₁ + ḡ·R.

    f′ is 1 − hₜ² of the hyperbolic tangent, 1 where hₜ > 0 of Relu.
    """
    layer, (states, before), activation = t.saved[node.name]
    loop = Loop(node, layer, t)
    step, hidden, dh = loop.step, layer.hidden, loop.step.name("dh")
    h = loop.of(states)
    if activation == "Relu":
        slope = step.add("Sign", [h])
    else:
        slope = step.add("Sub", [step.number(1), step.add("Mul", [h, h])])
    gradient = step.add("Mul", [loop.reaching(dh, gradients[0]), slope])
    after = step.add("MatMul", [gradient, layer.recurrence])
    found = [
        loop.of_inputs(gradient),
        loop.product(gradient, layer.x, (hidden, layer.width)),
        loop.product(gradient, before, (hidden, hidden)),
        t.add("Concat", [loop.total(gradient, hidden)] * 2, axis=0),
    ]
    return loop.gradients(*found, *loop.write([(dh, after)], gradients[1:]))
