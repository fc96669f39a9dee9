"""Batch normalisation in training (Ioffe and Szegedy 2015), with statistics that follow the data.

Every row counts as much as its weight wᵢ, the weights of a batch adding up to 1; m is the number of
positions of a channel in one row, such as the length of a window. A row of weight 0 is padding: it leaves
no trace in mean and variance, and so none in the other rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edged.bundles.graph.writer import Shape, Writer, attributes_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

# Below this the rest of 1 − Σwᵢ²/m is rounding, and there is one number for each channel.
ONE_NUMBER = 1e-6


def batch_norm_internal(node: onnx.NodeProto, to: Writer) -> None:
    """Compute y = γ·x̂ + β with x̂ = (x − μ)·r and r = 1/√(σ² + ε).

    μ = Σ wᵢ·mean(xᵢ) and σ² = Σ wᵢ·mean((xᵢ − μ)²) for each channel, means over the positions of a row.
    The outputs saved for the gradient are μ and r, in a shape that goes with x. Running statistics move
    by 1 − momentum towards those of the batch: see `_remember`.
    """
    x, gamma, beta, *_ = node.input
    shape = to.shape(x, node)
    if shape[0] is not None or None in shape[1:]:
        raise refusal(node, "its input must be (batch, channels, sizes...), and only the batch may vary")
    mean = _mean(x, len(shape), to, node.output[3])
    centred = to.add("Sub", [x, mean])
    variance = _mean(to.add("Mul", [centred, centred]), len(shape), to)
    epsilon = to.number(attributes_of(node).get("epsilon", 1e-5))
    deviation = to.add("Sqrt", [to.add("Add", [variance, epsilon])])
    to.add("Reciprocal", [deviation], node.output[4])
    # γ·r is small: x̂ itself is never written.
    gamma, beta = (_beside(parameter, len(shape), to) for parameter in (gamma, beta))
    scaled = to.add("Mul", [centred, to.add("Mul", [gamma, node.output[4]])])
    to.add("Add", [scaled, beta], node.output[0])
    _remember(node, mean, variance, math.prod(size or 1 for size in shape[2:]), to)


def _mean(x: str, rank: int, to: Writer, output: str = "") -> str:
    """Σ wᵢ·mean(xᵢ) for each channel, `(1, channels, 1...)`."""
    rows = to.add("ReduceMean", [x], axes=list(range(2, rank)), keepdims=0) if rank > 2 else x
    if rank == 2:
        return to.add("Gemm", [to.row_shares, rows], output, transA=1)
    mean = to.add("Gemm", [to.row_shares, rows], transA=1)
    return to.add("Reshape", [mean, to.sizes(1, -1, *([1] * (rank - 2)))], output)


def _beside(parameter: str, rank: int, to: Writer) -> str:
    return parameter if rank == 2 else to.add("Reshape", [parameter, to.sizes(-1, *([1] * (rank - 2)))])


def _remember(node: onnx.NodeProto, mean: str, variance: str, positions: int, to: Writer) -> None:
    """Let running ← running + (1 − momentum)·(batch − running).

    The variance is the unbiased one, σ²/(1 − Σwᵢ²/m), which for n equal rows is σ²·nm/(nm − 1). PyTorch
    keeps that one and networks come from there; the ONNX specification says σ² itself. From a batch with
    one number for each channel nothing is learnt about a variance: then they stay as they are.
    """
    squares = to.add("ReduceSumSquare", [to.row_shares], keepdims=0)
    free = to.add("Sub", [to.number(1), to.add("Mul", [squares, to.number(1 / positions)])])
    enough = to.add("Greater", [free, to.number(ONE_NUMBER)])
    momentum = attributes_of(node).get("momentum", 0.9)
    rate = to.add("Where", [enough, to.number(1 - momentum), to.number(0)])
    unbiased = to.add("Div", [variance, to.add("Max", [free, to.number(ONE_NUMBER)])])
    for running, batch in ((node.input[3], mean), (node.input[4], unbiased)):
        away = to.add("Sub", [to.add("Reshape", [batch, to.sizes(-1)]), running])
        to.remember(running, to.add("Add", [running, to.add("Mul", [away, rate])]))


def batch_normalization_grad(node: onnx.NodeProto, to: Writer) -> None:
    """dβ = Σ ḡ, dγ = Σ ḡ·x̂ and dx = γ·r·(ḡ − wᵢ/m·(dβ + x̂·dγ)), sums over rows and positions.

    With equal weights wᵢ/m is one over the number of summands: section 3 of the paper.
    """
    gradient, x, gamma, mean, inverse = node.input
    shape = to.shape(x, node)
    rank, axes = len(shape), to.sizes(0, *range(2, len(shape)))
    # The same as in the forward pass, so that the runtime does it once.
    centred = to.add("Sub", [x, mean])
    outputs = [*node.output[1:], "", ""][:2]
    product = to.add("ReduceSum", [to.add("Mul", [gradient, centred]), axes], keepdims=0)
    scale = to.add("Mul", [product, to.add("Reshape", [inverse, to.sizes(-1)])], outputs[0])
    shift = to.add("ReduceSum", [gradient, axes], outputs[1], keepdims=0)
    if not node.output[0]:
        return
    slope = to.add("Mul", [_beside(scale, rank, to), inverse])
    shift, factor = _beside(shift, rank, to), to.add("Mul", [_beside(gamma, rank, to), inverse])
    _input_gradient(node, centred, (slope, shift, factor), shape, to)


def _input_gradient(
    node: onnx.NodeProto, centred: str, terms: tuple[str, str, str], shape: Shape, to: Writer
) -> None:
    """(ḡ − wᵢ/m·(slope·(x − μ) + shift))·factor, with everything small multiplied beforehand."""
    gradient, share = node.input[0], _share(shape, to)
    slope, shift, factor = terms
    if len(shape) > 2:
        each = to.add("Mul", [share, factor])
        slope, shift = (to.add("Mul", [term, each]) for term in (slope, shift))
        common = to.add("Add", [to.add("Mul", [centred, slope]), shift])
        to.add("Sub", [to.add("Mul", [gradient, factor]), common], node.output[0])
        return
    common = to.add("Add", [to.add("Mul", [centred, slope]), shift])
    rest = to.add("Sub", [gradient, to.add("Mul", [common, share])])
    to.add("Mul", [rest, factor], node.output[0])


def _share(shape: Shape, to: Writer) -> str:
    """wᵢ/m, `(batch, 1, 1...)`."""
    positions = math.prod(size or 1 for size in shape[2:])
    if len(shape) == 2:
        return to.row_shares
    share = to.add("Mul", [to.row_shares, to.number(1 / positions)])
    return to.add("Reshape", [share, to.sizes(-1, *([1] * (len(shape) - 1)))])


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "BatchNormInternal": batch_norm_internal,
    "BatchNormalizationGrad": batch_normalization_grad,
}
