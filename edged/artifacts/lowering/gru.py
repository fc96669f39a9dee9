"""GRU layers: forward with everything kept that the gradient needs, and the gradient itself.

Cho et al. 2014, as in the ONNX operator specification: z, r = σ(W·xₜ + R·hₜ₋₁ + b) and
hₜ = (1 − z)∘n + z∘hₜ₋₁, where n = tanh(W·xₜ + b + r∘m) with m = R·hₜ₋₁ + b (`linear_before_reset` 1,
PyTorch's form) or n = tanh(W·xₜ + b + R·(r∘hₜ₋₁)) (`linear_before_reset` 0).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edged.artifacts.lowering.recurrent import (
    Layer,
    before_each,
    keep_stock,
    lessened,
    product,
    projected,
    read_layer,
    rows_of,
    sequence_of,
    start_of,
    summed,
    write_forms,
    write_input_gradient,
)
from edged.artifacts.lowering.scans import Body, State, write_scan
from edged.artifacts.lowering.writer import Writer, attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    # ḡ on the input's side, then gradients of W, R, biases and initial state; made where they are wanted.
    Results = tuple[Callable[[], str], ...]

# What is kept of every step, (T, N, H) each but for the factors of all three gates, which are (T, N, 3·H).
KEPT_LINEAR = ("z", "of_n", "factors", "h")
KEPT_RESET = ("z", "r", "of_n", "of_z", "of_r", "reset", "h")


def gru_training(node: onnx.NodeProto, to: Writer) -> None:
    """The layer; what is kept of it gets names made from that of the node's last output.

    Batches of a few rows: the stock operator, whose states give all gates in a few products. Larger
    ones: every step in standard operators.
    """
    if node.output[2] not in to.read_by_nodes:
        keep_stock(node, "GRU", 2, to)
        return
    layer, last = _layer(node, to), to.name("last")
    kept = _kept(layer, node.output[2])
    forms = _at_once, partial(_step_by_step, within=False), partial(_step_by_step, within=True)
    write_forms(forms, layer, to, [*kept.values(), last])
    for name, value, axis in zip(node.output, (kept["h"], last), (1, 0), strict=False):
        if name:
            to.add("Unsqueeze", [value, to.sizes(axis)], name)


def _layer(node: onnx.NodeProto, to: Writer) -> Layer:
    bias, _, first = node.input[3:6]
    linear = bool(attributes_of(node).get("linear_before_reset", 0))
    return read_layer(node, to, bias=bias, first=[first], linear_before_reset=linear)


def _kept(layer: Layer, name: str) -> dict[str, str]:
    parts = KEPT_LINEAR if layer.linear_before_reset else KEPT_RESET
    return {part: f"{name}.{part}" for part in parts}


def _biases(layer: Layer, to: Body) -> tuple[str, str]:
    """What is added to W·xₜ, and what to R·hₜ₋₁."""
    if not layer.bias:
        return "", ""
    ours, states = to.split(layer.bias, *[3 * layer.hidden] * 2)
    return (ours, states) if layer.linear_before_reset else (to.add("Add", [ours, states]), "")


def _recurrences(layer: Layer, to: Body | Writer) -> tuple[str, str]:
    """R of z and r `(2·H, H)`, and of n `(H, H)`."""
    zr, n = to.name("recurrence"), to.name("recurrence")
    to.operator("Split", [layer.recurrence, to.sizes(2 * layer.hidden, layer.hidden)], [zr, n], axis=0)
    return zr, n


def _gates_linear(layer: Layer, x: str, before: str, bias: str, to: Body) -> list[str]:
    """z, r, n and m, where m = R·hₜ₋₁ + b; x is `(rows, 3·H)`, hₜ₋₁ `(rows, H)`."""
    hidden = layer.hidden
    linear = to.add("Gemm", [before, layer.recurrence, *([bias] if bias else [])], transB=1)
    (linear_zr, m), (x_zr, x_n) = (to.split(name, 2 * hidden, hidden) for name in (linear, x))
    z, r = to.split(to.add("Sigmoid", [to.add("Add", [x_zr, linear_zr])]), hidden, hidden)
    n = to.add("Tanh", [to.add("Add", [x_n, to.add("Mul", [r, m])])])
    return [z, r, n, m]


def _gates_reset(layer: Layer, x: str, before: str, weights: tuple[str, str], to: Body) -> list[str]:
    """z, r, n and r∘hₜ₋₁; x is `(rows, 3·H)`, hₜ₋₁ `(rows, H)`."""
    hidden = layer.hidden
    x_zr, x_n = to.split(x, 2 * hidden, hidden)
    squashed = to.add("Sigmoid", [to.add("Gemm", [before, weights[0], x_zr], transB=1)])
    z, r = to.split(squashed, hidden, hidden)
    reset = to.add("Mul", [r, before])
    return [z, r, to.add("Tanh", [to.add("Gemm", [reset, weights[1], x_n], transB=1)]), reset]


def _cell(layer: Layer, to: Body) -> tuple[str, Callable[[str, str, Body], list[str]]]:
    """W·xₜ + b `(T·N, 3·H)`, and what makes the gates of it."""
    ours, states = _biases(layer, to)
    if layer.linear_before_reset:
        return projected(layer, to, ours), lambda x, before, into: _gates_linear(
            layer, x, before, states, into
        )
    weights = _recurrences(layer, to)
    return projected(layer, to, ours), lambda x, before, into: _gates_reset(layer, x, before, weights, into)


def _step_by_step(layer: Layer, to: Body, *, within: bool) -> list[str]:
    """Every step written out; the factors of the gradient `within` the step, or for all steps after it."""
    inputs, gates = _cell(layer, to)
    step = to.body()
    x, before = step.name("x"), step.name("h")
    z, r, n, reset = gates(x, before, step)
    h = step.add("Add", [n, step.add("Mul", [z, step.add("Sub", [before, n])])])
    parts = _factors(layer, [z, r, n, reset, h], step) if within else [z, r, n, reset]
    every = (*parts, step.add("Identity", [h]))
    collected = {name: to.name("kept") for name in every}
    last = write_scan(
        step,
        to,
        states=[State(layer.first[0], before, h)],
        sequences={x: sequence_of(inputs, layer, 3 * layer.hidden, to)},
        collected=collected,
    )
    values = list(collected.values())
    return [*(values[:-1] if within else _factors(layer, values, to)), values[-1], *last]


def _at_once(layer: Layer, to: Body) -> list[str]:
    whole = [to.name("whole"), to.name("whole")]
    linear = int(layer.linear_before_reset)
    to.operator("GRU", layer.given, whole, hidden_size=layer.hidden, linear_before_reset=linear)
    h = to.add("Squeeze", [whole[0], to.sizes(1)])
    inputs, gates = _cell(layer, to)
    made = gates(inputs, rows_of(before_each(layer.first[0], h, to), to), to)
    z, r, n, reset = (sequence_of(part, layer, layer.hidden, to) for part in made)
    return [*_factors(layer, [z, r, n, reset, h], to), h, to.add("Squeeze", [whole[1], to.sizes(0)])]


def _factors(layer: Layer, parts: Sequence[str], to: Body) -> list[str]:
    """What the gradient multiplies with; `parts` are z, r, n, m or r∘hₜ₋₁, and hₜ.

    (1−z)(1−n²) for n, (hₜ₋₁ − n)∘z(1−z) for z, which is (hₜ − n)(1−z), and for r what `gru_grad` says.
    """
    z, r, n, reset, h = parts
    rest = to.add("Sub", [to.number(1), z])
    of_n = lessened(rest, to.add("Mul", [n, n]), to)
    of_z = to.add("Mul", [to.add("Sub", [h, n]), rest])
    if not layer.linear_before_reset:
        return [z, r, of_n, of_z, lessened(reset, r, to), reset]
    of_m = to.add("Mul", [of_n, r])
    of_r = lessened(to.add("Mul", [of_m, reset]), r, to)
    return [z, of_n, to.add("Concat", [of_z, of_r, of_m], axis=-1)]


# ---- gradient ---------------------------------------------------------------------------------


def gru_grad(node: onnx.NodeProto, to: Writer) -> None:
    """Backpropagation through time (Werbos 1990), from the last step to the first.

    With dh all that reaches hₜ: ḡ_z = dh∘(hₜ₋₁ − n)∘z(1−z), ḡ_n = dh∘(1−z)∘(1−n²), and
    ḡ_r = ḡ_n∘m∘r(1−r), or dq∘hₜ₋₁∘r(1−r) where dq = ḡ_n·R_n is the gradient of q = r∘hₜ₋₁. For the step
    before: dh = ∂loss/∂hₜ₋₁ + dh∘z + (ḡ_z, ḡ_r, ḡ_n∘r)·R, or … + (ḡ_z, ḡ_r)·R_zr + dq∘r. The factors of
    dh come from the forward pass, and gradients of weights are computed afterwards in one product.
    """
    layer = _layer(node, to)
    loop = _Loop(layer, _kept(layer, node.input[7]), node, to)
    inputs, *others = (_back_linear if layer.linear_before_reset else _back_reset)(loop)
    if node.output[0]:
        write_input_gradient(layer, inputs(), node.output[0], to)
    for name, gradient in zip(node.output[1:], others, strict=False):
        if name:
            to.add("Unsqueeze", [gradient(), to.sizes(0)], name)


class _Loop:
    """The loop from the last step to the first."""

    def __init__(self, layer: Layer, kept: Mapping[str, str], node: onnx.NodeProto, to: Writer) -> None:
        self.layer, self.kept, self.to = layer, kept, to
        self.step = Body(to)
        self.before = self.step.name("dh")
        self.sequences: dict[str, str] = {}
        self.of_states, self.of_last = [*node.input[8:], "", ""][:2]

    def of(self, sequence: str) -> str:
        """What the step reads of a sequence `(T, N, ...)`."""
        name = self.step.name("of")
        self.sequences[name] = sequence
        return name

    def reaching(self) -> str:
        """What reaches hₜ: what comes from the next step, and from what reads hₜ."""
        if not self.of_states:
            return self.before
        states = self.to.add("Squeeze", [self.of_states, self.to.sizes(1)])
        return self.step.add("Add", [self.before, self.of(states)])

    def run(self, after: str, collected: list[str]) -> tuple[list[str], str]:
        """Write the loop; all values of what is collected, and the gradient of the initial state."""
        names = {name: self.to.name("collected") for name in collected}
        first = start_of(self.of_last, self.layer.first[0], self.to)
        (of_first,) = write_scan(
            self.step,
            self.to,
            states=[State(first, self.before, after)],
            sequences=self.sequences,
            collected=names,
            backwards=True,
        )
        return list(names.values()), of_first

    def earlier(self) -> str:
        """The states that the steps have read."""
        return before_each(self.layer.first[0], self.kept["h"], self.to)


def _back_linear(loop: _Loop) -> Results:
    """The form with `linear_before_reset` 1."""
    layer, kept, to, step = loop.layer, loop.kept, loop.to, loop.step
    dh = loop.reaching()
    linear = step.add("Mul", [step.add("Concat", [dh] * 3, axis=-1), loop.of(kept["factors"])])
    through = step.add("Mul", [dh, loop.of(kept["z"])])
    after = step.add("Gemm", [linear, layer.recurrence, through])
    (all_gates, n), first = loop.run(after, [linear, step.add("Mul", [dh, loop.of(kept["of_n"])])])

    def with_n(gates: str, of_n: str, axis: int) -> str:
        # Only n takes something else from the input than from the state.
        zr = to.add("Slice", [gates, to.sizes(0), to.sizes(2 * layer.hidden), to.sizes(axis)])
        return to.add("Concat", [zr, of_n], axis=axis)

    def of_bias() -> str:
        sums = summed(all_gates, to)
        return to.add("Concat", [with_n(sums, summed(n, to), 0), sums], axis=0)

    return (
        lambda: with_n(all_gates, n, 2),
        lambda: with_n(product(all_gates, layer.x, to), product(n, layer.x, to), 0),
        lambda: product(all_gates, loop.earlier(), to),
        of_bias,
        lambda: first,
    )


def _back_reset(loop: _Loop) -> Results:
    """The form with `linear_before_reset` 0."""
    layer, kept, to, step = loop.layer, loop.kept, loop.to, loop.step
    weights = _recurrences(layer, to)
    dh = loop.reaching()
    of_n = step.add("Mul", [dh, loop.of(kept["of_n"])])
    dq = step.add("MatMul", [of_n, weights[1]])
    pair = [step.add("Mul", [dh, loop.of(kept["of_z"])]), step.add("Mul", [dq, loop.of(kept["of_r"])])]
    of_zr = step.add("Concat", pair, axis=-1)
    through = [step.add("Mul", [dh, loop.of(kept["z"])]), step.add("Mul", [dq, loop.of(kept["r"])])]
    after = step.add("Gemm", [of_zr, weights[0], step.add("Add", through)])
    (zr, n), first = loop.run(after, [of_zr, of_n])

    def products(of_zr: str, of_n: str) -> str:
        return to.add("Concat", [product(zr, of_zr, to), product(n, of_n, to)], axis=0)

    return (
        lambda: to.add("Concat", [zr, n], axis=-1),
        lambda: products(layer.x, layer.x),
        lambda: products(loop.earlier(), kept["reset"]),
        lambda: to.add("Concat", [summed(zr, to), summed(n, to)] * 2, axis=0),
        lambda: first,
    )


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "GRUTraining": gru_training,
    "GRUGrad": gru_grad,
}
