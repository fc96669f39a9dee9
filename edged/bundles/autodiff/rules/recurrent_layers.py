"""LSTM, GRU and RNN layers: forward with everything kept that the gradient needs, and the gradient itself.

Equations are those of the ONNX operator specification. Batches of a few rows take the stock operator, whose
states give all gates in a few products; for larger ones every step is written out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import onnx

from edged.bundles.autodiff.rules.recurrent import (
    Loop,
    RecurrentLayer,
    affine,
    are_fewer,
    before_each,
    both_biases,
    lessened,
    read_layer,
    readers_of,
    rows_of,
    sequence_of,
    stock_layer,
    write_forward,
    write_gradients,
    write_steps,
)
from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape, backward, forward
from edged.bundles.graph.writer import (
    NodeWriter,
    ScanState,
    attributes_of,
    untrainable,
    write_choice,
    write_scan,
)

# ---- LSTM -------------------------------------------------------------------------------------

SHORT = 4  # steps that are not worth a block


@forward("LSTM")
def lstm_forward(node: onnx.NodeProto, t: Tape) -> None:
    """Hochreiter and Schmidhuber 1997 with forget gates (Gers et al. 2000).

    i, o, f = σ(W·xₜ + R·hₜ₋₁ + b), g = tanh(W·xₜ + R·hₜ₋₁ + b), cₜ = f∘cₜ₋₁ + i∘g, hₜ = o∘tanh(cₜ). Kept are
    i, o and f side by side `(T, N, 3·H)`, g, tanh cₜ, f∘cₜ₋₁ and hₜ₋₁. With the stock operator only cₜ is
    left to be computed step by step.
    """
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer = read_layer(node, t)
    t.saved[node.name] = layer, write_forward(node, layer, 5, (_lstm_at_once, _lstm_step_by_step), t)


def _lstm_step_by_step(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    bias, step = both_biases(layer, 4, to), to.body()
    x, h, c = (step.name(hint) for hint in "xhc")
    iof, (i, o, f), g = _lstm_gates(layer, x, h, bias, step)
    fc = step.add("Mul", [f, c])
    new_c = step.add("Add", [step.add("Mul", [i, g]), fc])
    tanh = step.add("Tanh", [new_c])
    states = [(h, step.add("Mul", [o, tanh])), (c, new_c)]
    return write_steps(layer, step, x, states, (iof, g, tanh, fc), to)


def _lstm_at_once(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    _, h, last = stock_layer("LSTM", layer, to)
    bias = both_biases(layer, 4, to)
    iof, each, g = _lstm_gates(layer, rows_of(layer.x, to), rows_of(h, to), bias, to)
    i, _, f, new = (sequence_of(gate, layer, layer.hidden, to) for gate in (*each, g))
    ig = to.add("Mul", [i, new])
    fc = _remembered(f, ig, layer, to)
    tanh = to.add("Tanh", [to.add("Add", [ig, fc])])
    return [sequence_of(iof, layer, 3 * layer.hidden, to), new, tanh, fc, h, *last]


def _lstm_gates(
    layer: RecurrentLayer, x: str, h: str, bias: str, to: NodeWriter
) -> tuple[str, list[str], str]:
    """i, o and f side by side, each of them, and g, of xₜ `(rows, I)` and hₜ₋₁ `(rows, H)`."""
    linear = affine(h, layer.recurrence, affine(x, layer.weight, bias, to), to)
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
    state = ScanState(layer.first[1], before, step.add("Add", [fc, new]), to.name("last"))
    result = to.name("remembered")
    write_scan(step, to, states=[state], sequences={forget: f, new: ig}, collected={fc: result})
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
        ScanState(zeros, local, step.add("Add", [fl, new]), to.name("last")),
        ScanState(to.add("Exp", [zeros]), share, fp, to.name("last")),
    ]
    collected = {fl: to.name("local"), step.add("Identity", [fp]): to.name("share")}
    sequences = dict(zip((forget, new), rounds, strict=True))
    write_scan(step, to, states=states, sequences=sequences, collected=collected)
    last, through = (to.add("Unsqueeze", [state.last, to.sizes(1)]) for state in states)
    after = to.add("Add", [_one_by_one(through, last, layer, to), last])
    starts = to.add("Squeeze", [before_each(layer.first[1], after, to), to.sizes(1)])
    locals_, shares = collected.values()
    whole = to.add("Add", [locals_, to.add("Mul", [shares, starts])])
    return to.add("Reshape", [to.add("Transpose", [whole], perm=[1, 0, 2]), to.sizes(-1, 1, layer.hidden)])


@backward("LSTM")
def lstm(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    With dc = ∂loss/∂cₜ before and dc′ after the path over hₜ, and dh all that reaches hₜ:
    dc′ = dc + dh∘o∘(1 − tanh²cₜ), ḡ = (dc′∘g∘i(1−i), dh∘tanh cₜ∘o(1−o), dc′∘cₜ₋₁∘f(1−f), dc′∘i∘(1−g²)),
    and for the step before: dh = ∂loss/∂hₜ₋₁ + ḡ·R, dc = dc′∘f.
    """
    layer, (*kept, before) = t.saved[node.name]
    of_states, *of_last = readers_of(gradients, node, t)

    def back(loop: Loop) -> list[str]:
        step, width = loop.step, 4 * layer.hidden
        dh, dc = step.name("dh"), step.name("dc")
        through, f, factors = loop.prepared(kept, partial(_lstm_factors, layer))
        all_h = loop.reaching(dh, of_states)
        all_c = step.add("Add", [dc, step.add("Mul", [all_h, through])])
        paths = step.add("Concat", [all_c, all_h, all_c, all_c], axis=-1)
        gradient = step.add("Mul", [paths, factors])
        after = step.add("MatMul", [gradient, layer.recurrence]), step.add("Mul", [all_c, f])
        return [
            loop.of_inputs([gradient], lambda parts, _: parts[0]),
            loop.product(gradient, layer.x, (width, layer.width)),
            loop.product(gradient, before, (width, layer.hidden)),
            loop.of_both_biases(gradient, width),
            *loop.write(list(zip((dh, dc), after, strict=True)), of_last),
        ]

    return write_gradients(node, layer, t, back)


def _lstm_factors(layer: RecurrentLayer, kept: Sequence[str], to: NodeWriter) -> list[str]:
    """o(1 − tanh²c), f, and side by side g∘i(1−i), tanh c∘o(1−o), cₜ₋₁∘f(1−f), i(1−g²), as a − a∘b."""
    iof, g, tanh, fc = kept
    i, o, f = to.split(iof, *[layer.hidden] * 3)
    ig, h = to.add("Mul", [i, g]), to.add("Mul", [o, tanh])
    gates = [lessened(ig, i, to), lessened(h, o, to), lessened(fc, f, to)]
    gates.append(to.add("Sub", [i, to.add("Mul", [ig, g])]))
    through = to.add("Sub", [o, to.add("Mul", [h, tanh])])
    return [through, f, to.add("Concat", gates, axis=-1)]


# ---- GRU --------------------------------------------------------------------------------------


@forward("GRU")
def gru_forward(node: onnx.NodeProto, t: Tape) -> None:
    """Cho et al. 2014: z, r = σ(W·xₜ + R·hₜ₋₁ + b) and hₜ = (1 − z)∘n + z∘hₜ₋₁.

    n = tanh(W·xₜ + b + r∘q) with q = R·hₜ₋₁ + b (`linear_before_reset` 1, PyTorch's form) or
    n = tanh(W·xₜ + b + R·q) with q = r∘hₜ₋₁ (`linear_before_reset` 0).

    Kept are z and r side by side `(T, N, 2·H)`, n, q and hₜ₋₁.
    """
    if t.active.isdisjoint(node.output):
        t.copy(node)
        return
    layer = read_layer(node, t)
    t.saved[node.name] = layer, write_forward(node, layer, 4, (_gru_at_once, _gru_step_by_step), t)


def _gru_step_by_step(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    step = to.body()
    x, before = step.name("x"), step.name("h")
    zr, z, n, q = _gru_gates(layer, x, before, step, to)
    h = step.add("Add", [n, step.add("Mul", [z, step.add("Sub", [before, n])])])
    return write_steps(layer, step, x, [(before, h)], (zr, n, q), to)


def _gru_at_once(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    _, before, last = stock_layer("GRU", layer, to, linear_before_reset=int(layer.linear_before_reset))
    zr, _, n, q = _gru_gates(layer, rows_of(layer.x, to), rows_of(before, to), to, to)
    parts = zip((zr, n, q), (2, 1, 1), strict=True)
    return [*(sequence_of(part, layer, times * layer.hidden, to) for part, times in parts), before, *last]


def _gru_gates(
    layer: RecurrentLayer, x: str, before: str, step: NodeWriter, to: NodeWriter
) -> tuple[str, str, str, str]:
    """Side by side z and r; z, n and q, of xₜ `(rows, I)` and hₜ₋₁ `(rows, H)`; weights are split in `to`."""
    sizes = 2 * layer.hidden, layer.hidden
    (x_zr, x_n), (h_zr, h_n) = (
        to.split(matrix, *sizes, axis=0) for matrix in (layer.weight, layer.recurrence)
    )
    bias_zr, bias_n, bias_q = _gru_biases(layer, to)
    zr = step.add("Sigmoid", [affine(before, h_zr, affine(x, x_zr, bias_zr, step), step)])
    z, r = step.split(zr, layer.hidden, layer.hidden)
    of_x = affine(x, x_n, bias_n, step)
    if layer.linear_before_reset:
        q = affine(before, h_n, bias_q, step)
        return zr, z, step.add("Tanh", [step.add("Add", [of_x, step.add("Mul", [r, q])])]), q
    q = step.add("Mul", [r, before])
    return zr, z, step.add("Tanh", [affine(q, h_n, of_x, step)]), q


def _gru_biases(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
    """The biases of z and r together, of n, and of q, which has one of its own where it is R·hₜ₋₁ + b."""
    if not layer.bias:
        return ["", "", ""]
    x_zr, x_n, zr, q = to.split(layer.bias, *[2 * layer.hidden, layer.hidden] * 2)
    of_n = [x_n, q] if layer.linear_before_reset else [to.add("Add", [x_n, q]), ""]
    return [to.add("Add", [x_zr, zr]), *of_n]


@backward("GRU")
def gru(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    With dh all that reaches hₜ: ḡ_z = dh∘(hₜ₋₁ − n)∘z(1−z), ḡ_n = dh∘(1−z)∘(1−n²), and
    ḡ_r = ḡ_n∘q∘r(1−r), or dq∘q∘(1−r) where dq = ḡ_n·R_n is the gradient of q = r∘hₜ₋₁. For the step
    before: dh = ∂loss/∂hₜ₋₁ + dh∘z + (ḡ_z, ḡ_r, ḡ_n∘r)·R, or … + (ḡ_z, ḡ_r)·R_zr + dq∘r.
    """
    layer, kept = t.saved[node.name]
    of_states, *of_last = readers_of(gradients, node, t)
    back = _gru_back_linear if layer.linear_before_reset else _gru_back_reset
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


def _gru_back_linear(loop: Loop, kept: Sequence[str], of_states: str, of_last: Sequence[str]) -> list[str]:
    """The form with `linear_before_reset` 1."""
    layer, step, behind, hidden = loop.layer, loop.step, loop.behind, loop.layer.hidden
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
    sums, sums_n = loop.total(gates, 3 * hidden), loop.total(n, hidden)
    return [
        of_x,
        with_n(of_weight, of_weight_n, 0, behind),
        loop.product(gates, kept[-1], (3 * hidden, hidden)),
        behind.add("Concat", [with_n(sums, sums_n, 0, behind), sums], axis=0),
        *loop.write([(before, after)], of_last),
    ]


def _factors_reset(layer: RecurrentLayer, kept: Sequence[str], to: NodeWriter) -> list[str]:
    z, r, of_n, of_z = _of_gates(layer, kept, to)
    return [z, r, of_n, of_z, lessened(kept[2], r, to)]


def _gru_back_reset(loop: Loop, kept: Sequence[str], of_states: str, of_last: Sequence[str]) -> list[str]:
    """The form with `linear_before_reset` 0."""
    layer, step, hidden = loop.layer, loop.step, loop.layer.hidden
    weights = loop.to.split(layer.recurrence, 2 * hidden, hidden, axis=0)
    before = step.name("dh")
    z, r, of_n, of_z, of_r = loop.prepared(kept, partial(_factors_reset, layer))
    dh = loop.reaching(before, of_states)
    n = step.add("Mul", [dh, of_n])
    dq = step.add("MatMul", [n, weights[1]])
    zr = step.add("Concat", [step.add("Mul", [dh, of_z]), step.add("Mul", [dq, of_r])], axis=-1)
    through = step.add("Add", [step.add("Mul", [dh, z]), step.add("Mul", [dq, r])])
    after = step.add("Gemm", [zr, weights[0], through])
    of_x = loop.of_inputs([zr, n], lambda parts, to: to.add("Concat", [*parts], axis=-1))
    parts = (zr, 2 * hidden, kept[-1]), (n, hidden, kept[2])
    of_weight = [loop.product(part, layer.x, (size, layer.width)) for part, size, _ in parts]
    of_recurrence = [loop.product(part, values, (size, hidden)) for part, size, values in parts]
    totals = [loop.total(part, size) for part, size, _ in parts]
    below = (loop.behind.add("Concat", made, axis=0) for made in (of_weight, of_recurrence, totals * 2))
    return [of_x, *below, *loop.write([(before, after)], of_last)]


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

    def at_once(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
        h, before, last = stock_layer("RNN", layer, to, activations=[activation])
        return [h, before, *last]

    def step_by_step(layer: RecurrentLayer, to: NodeWriter) -> list[str]:
        bias, step = both_biases(layer, 1, to), to.body()
        x, before = step.name("x"), step.name("h")
        linear = affine(before, layer.recurrence, affine(x, layer.weight, bias, step), step)
        h = step.add(activation, [linear])
        return write_steps(layer, step, x, [(before, step.add("Identity", [h]))], (h,), to)

    kept = write_forward(node, layer, 2, (at_once, step_by_step), t)
    t.saved[node.name] = layer, kept, activation


@backward("RNN")
def rnn(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    ḡ = dh∘f′, and for the step before dh = ∂loss/∂hₜ₋₁ + ḡ·R.
    f′ is 1 − hₜ² of the hyperbolic tangent, 1 where hₜ > 0 of Relu.
    """
    layer, (states, before), activation = t.saved[node.name]
    of_states, *of_last = readers_of(gradients, node, t)

    def slopes(parts: Sequence[str], to: NodeWriter) -> list[str]:
        (h,) = parts
        if activation == "Relu":
            return [to.add("Sign", [h])]
        return [to.add("Sub", [to.number(1), to.add("Mul", [h, h])])]

    def back(loop: Loop) -> list[str]:
        step, hidden, dh = loop.step, layer.hidden, loop.step.name("dh")
        (slope,) = loop.prepared([states], slopes)
        gradient = step.add("Mul", [loop.reaching(dh, of_states), slope])
        after = step.add("MatMul", [gradient, layer.recurrence])
        return [
            loop.of_inputs([gradient], lambda parts, _: parts[0]),
            loop.product(gradient, layer.x, (hidden, layer.width)),
            loop.product(gradient, before, (hidden, hidden)),
            loop.of_both_biases(gradient, hidden),
            *loop.write([(dh, after)], of_last),
        ]

    return write_gradients(node, layer, t, back)
