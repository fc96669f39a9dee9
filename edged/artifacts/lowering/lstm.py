"""LSTM layers: forward with everything kept that the gradient needs, and the gradient itself.

Hochreiter and Schmidhuber 1997 with forget gates (Gers et al. 2000), as in the ONNX operator specification:
i, o, f = σ(W·xₜ + R·hₜ₋₁ + b), g = tanh(W·xₜ + R·hₜ₋₁ + b), cₜ = f∘cₜ₋₁ + i∘g, hₜ = o∘tanh(cₜ).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edged.artifacts.lowering.recurrent import (
    Layer,
    before_each,
    keep_stock,
    lessened,
    projected,
    read_layer,
    rows_of,
    sequence_of,
    start_of,
    summed,
    write_forms,
    write_input_gradient,
    write_product,
)
from edged.artifacts.lowering.scans import Body, State, write_scan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from edged.artifacts.lowering.writer import Writer

# What is kept of every step: ∂cₜ/∂hₜ, f, the factors of all four gates `(T, N, 4·H)`, and hₜ.
KEPT = ("through", "f", "factors", "h")


def lstm_training(node: onnx.NodeProto, to: Writer) -> None:
    """The layer; what is kept of it gets names made from that of the node's last output.

    Batches of a few rows: the stock operator, whose states give all gates in one product, so that only
    cₜ is left to be computed step by step. Larger ones: every step in standard operators.
    """
    if node.output[4] not in to.read_by_nodes:
        keep_stock(node, "LSTM", 3, to)
        return
    layer = _layer(node, to, node.input[3] if len(node.input) > 3 else "")
    kept = _kept(node.output[4])
    last = [to.name("last") for _ in layer.first]
    forms = _at_once, partial(_step_by_step, within=False), partial(_step_by_step, within=True)
    write_forms(forms, layer, to, [*kept.values(), *last])
    for name, value, axis in zip(node.output, (kept["h"], *last), (1, 0, 0), strict=False):
        if name:
            to.add("Unsqueeze", [value, to.sizes(axis)], name)


def _layer(node: onnx.NodeProto, to: Writer, bias: str) -> Layer:
    start = 5 if node.op_type == "LSTMTraining" else 4
    return read_layer(node, to, bias=bias, first=node.input[start : start + 2])


def _kept(name: str) -> dict[str, str]:
    return {part: f"{name}.{part}" for part in KEPT}


def _bias(layer: Layer, to: Body) -> str:
    """The two biases of every gate added up."""
    if not layer.bias:
        return ""
    return to.add("Add", to.split(layer.bias, *[4 * layer.hidden] * 2))


def _gates(layer: Layer, x: str, h: str, to: Body) -> list[str]:
    """i, o, f and g of W·xₜ + b `(rows, 4·H)` and hₜ₋₁ `(rows, H)`."""
    linear = to.add("Gemm", [h, layer.recurrence, x], transB=1)
    squashed, candidate = to.split(linear, 3 * layer.hidden, layer.hidden)
    return [*to.split(to.add("Sigmoid", [squashed]), *[layer.hidden] * 3), to.add("Tanh", [candidate])]


def _step_by_step(layer: Layer, to: Body, *, within: bool) -> list[str]:
    """Every step written out; the factors of the gradient `within` the step, or for all steps after it."""
    step = to.body()
    x, h, c = (step.name(hint) for hint in "xhc")
    i, o, f, g = _gates(layer, x, h, step)
    ig, fc = step.add("Mul", [i, g]), step.add("Mul", [f, c])
    new_c = step.add("Add", [ig, fc])
    tanh = step.add("Tanh", [new_c])
    new_h = step.add("Mul", [o, tanh])
    parts = [i, o, f, g, ig, fc, tanh]
    every = [*(_factors([*parts, new_h], step) if within else parts), step.add("Identity", [new_h])]
    collected = {name: to.name("kept") for name in every}
    last = write_scan(
        step,
        to,
        states=[State(layer.first[0], h, new_h), State(layer.first[1], c, new_c)],
        sequences={x: sequence_of(projected(layer, to, _bias(layer, to)), layer, 4 * layer.hidden, to)},
        collected=collected,
    )
    values = list(collected.values())
    return [*(values[:-1] if within else _factors(values, to)), values[-1], *last]


def _at_once(layer: Layer, to: Body) -> list[str]:
    whole = [to.name("whole") for _ in range(3)]
    to.operator("LSTM", layer.given, whole, hidden_size=layer.hidden)
    h = to.add("Squeeze", [whole[0], to.sizes(1)])
    earlier = rows_of(before_each(layer.first[0], h, to), to)
    gates = _gates(layer, projected(layer, to, _bias(layer, to)), earlier, to)
    i, o, f, g = (sequence_of(gate, layer, layer.hidden, to) for gate in gates)
    ig = to.add("Mul", [i, g])
    fc = _remembered(f, ig, layer, to)
    tanh = to.add("Tanh", [to.add("Add", [ig, fc])])
    factors = _factors([i, o, f, g, ig, fc, tanh, h], to)
    return [*factors, h, *(to.add("Squeeze", [name, to.sizes(0)]) for name in whole[1:])]


def _remembered(f: str, ig: str, layer: Layer, to: Body) -> str:
    """f∘cₜ₋₁ of all steps."""
    step = to.body()
    before, forget, new = step.name("c"), step.name("f"), step.name("ig")
    fc = step.add("Mul", [forget, before])
    after = step.add("Add", [fc, new])
    result = to.name("remembered")
    write_scan(
        step,
        to,
        states=[State(layer.first[1], before, after)],
        sequences={forget: f, new: ig},
        collected={fc: result},
    )
    return result


def _factors(parts: Sequence[str], to: Body) -> tuple[str, str, str]:
    """o(1 − tanh²c), f, and side by side g∘i(1−i), tanh c∘o(1−o), cₜ₋₁∘f(1−f), i(1−g²), as a − a∘b.

    `parts` are i, o, f, g, i∘g, f∘cₜ₋₁, tanh c and hₜ.
    """
    i, o, f, g, ig, fc, tanh, h = parts
    gates = [lessened(ig, i, to), lessened(h, o, to), lessened(fc, f, to)]
    gates.append(to.add("Sub", [i, to.add("Mul", [ig, g])]))
    through = to.add("Sub", [o, to.add("Mul", [h, tanh])])
    return through, f, to.add("Concat", gates, axis=-1)


def lstm_grad(node: onnx.NodeProto, to: Writer) -> None:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    With dc = ∂loss/∂cₜ before and dc′ after the path over hₜ, and dh all that reaches hₜ:
    dc′ = dc + dh∘o∘(1 − tanh²cₜ), ḡ = (dc′∘g∘i(1−i), dh∘tanh cₜ∘o(1−o), dc′∘cₜ₋₁∘f(1−f), dc′∘i∘(1−g²)),
    and for the step before: dh = ∂loss/∂hₜ₋₁ + ḡ·R, dc = dc′∘f. The factors of dc′ and dh come from the
    forward pass, and gradients of weights are computed afterwards in one product.
    """
    layer = _layer(node, to, "")
    kept = _kept(node.input[8])
    gradient, last = _backwards(layer, kept, node, to)
    of_x, of_weight, of_recurrence, of_bias, *of_first = [*node.output, *[""] * 6][:6]
    if of_x:
        write_input_gradient(layer, gradient, of_x, to)
    if of_weight:
        write_product(gradient, layer.x, of_weight, to)
    if of_recurrence:
        write_product(gradient, before_each(layer.first[0], kept["h"], to), of_recurrence, to)
    if of_bias:
        # The biases of the input's side and of the state's have the same gradient.
        to.add("Unsqueeze", [to.add("Concat", [summed(gradient, to)] * 2, axis=0), to.sizes(0)], of_bias)
    for name, value in zip(of_first, last, strict=True):
        if name:
            to.add("Unsqueeze", [value, to.sizes(0)], name)


def _backwards(
    layer: Layer, kept: Mapping[str, str], node: onnx.NodeProto, to: Writer
) -> tuple[str, list[str]]:
    """ḡ of all steps `(T, N, 4·H)`, and the gradients of the initial states."""
    of_states, *of_last = [*node.input[9:], "", "", ""][:3]
    step = Body(to)
    dh, dc, over_h, forget, times, from_above = (
        step.name(hint) for hint in ("dh", "dc", "a", "f", "b", "dy")
    )
    sequences = {over_h: kept["through"], forget: kept["f"], times: kept["factors"]}
    all_h = dh
    if of_states:
        sequences[from_above] = to.add("Squeeze", [of_states, to.sizes(1)])
        all_h = step.add("Add", [dh, from_above])
    all_c = step.add("Add", [dc, step.add("Mul", [all_h, over_h])])
    paths = step.add("Concat", [all_c, all_h, all_c, all_c], axis=-1)
    gradient = step.add("Mul", [paths, times])
    after = step.add("MatMul", [gradient, layer.recurrence]), step.add("Mul", [all_c, forget])
    firsts = [start_of(name, like, to) for name, like in zip(of_last, layer.first, strict=True)]
    result = to.name("gates")
    last = write_scan(
        step,
        to,
        states=[State(*names) for names in zip(firsts, (dh, dc), after, strict=True)],
        sequences=sequences,
        collected={gradient: result},
        backwards=True,
    )
    return result, last


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "LSTMTraining": lstm_training,
    "LSTMGrad": lstm_grad,
}
