"""Normalisation and dropout: batches, layers, groups and instances; units left out."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edged.bundles.autodiff.shapes import row_elements
from edged.bundles.autodiff.tape import BATCH, Adjoint, Adjoints, Dims, Tape, backward, forward
from edged.bundles.graph.writer import attributes_of, untrainable


@forward("LayerNormalization")
def layer_norm_forward(node: onnx.NodeProto, t: Tape) -> None:
    """As it is, with mean and inverse deviation kept for the gradient."""
    if node.output[0] not in t.active:
        t.copy(node)
        return
    outputs = [name or t.name("statistic") for name in (*node.output, "", "")[:3]]
    t.saved[node.output[0]] = outputs[1:]
    t.operator("LayerNormalization", list(node.input), outputs, **attributes_of(node))


@backward("LayerNormalization")
def layer_norm(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Of y = γ·x̂ + β: with g = ḡγ, dx = r·(g − mean g − x̂·mean(g x̂)), dγ = Σ ḡx̂, dβ = Σ ḡ.

    Ba, Kiros and Hinton 2016, section 3: x̂ = (x − μ)·r with r = 1/σ; means over the normalised axes, sums
    over the others.
    """
    if gradients[0] is None or any(gradients[1:]):
        raise untrainable(node, "its mean or deviation is read")
    (x, gamma), (mean, inverse) = node.input[:2], t.saved[node.output[0]]
    dims, gradient = t.dims(x, node), t.whole(gradients[0], node)
    first = attributes_of(node).get("axis", -1) % len(dims)
    normal = t.add("Mul", [t.add("Sub", [x, mean]), inverse])
    found: Adjoints = [None, None, None]
    if t.wants(node, 0):
        inner = list(range(first, len(dims)))
        scaled = t.add("Mul", [gradient, gamma])
        found[0] = Adjoint(_of_input(scaled, normal, inverse, inner, t), dims)
    found[1:] = _of_affine(node, gradient, normal, list(range(first)), t)
    return found


@backward("InstanceNormalization")
def instance_norm(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """As LayerNormalization over all axes behind the channel, γ per channel.

    Ulyanov et al. 2016.
    """
    x, gamma, _ = node.input
    dims, gradient = t.dims(x, node), t.whole(gradients[0], node)
    inner = list(range(2, len(dims)))
    mean = t.add("ReduceMean", [x, t.sizes(*inner)], keepdims=1)
    centred = t.add("Sub", [x, mean])
    variance = t.add("ReduceMean", [t.add("Mul", [centred, centred]), t.sizes(*inner)], keepdims=1)
    epsilon = t.number(attributes_of(node).get("epsilon", 1e-5))
    inverse = t.add("Reciprocal", [t.add("Sqrt", [t.add("Add", [variance, epsilon])])])
    normal = t.add("Mul", [centred, inverse])
    found: Adjoints = [None, None, None]
    if t.wants(node, 0):
        value, scaled = t.value(gamma), gradient
        if value is None or (value != 1).any():
            each = t.add("Reshape", [gamma, t.sizes(-1, *(1 for _ in inner))])
            scaled = t.add("Mul", [gradient, each])
        found[0] = Adjoint(_of_input(scaled, normal, inverse, inner, t), dims)
    found[1:] = _of_affine(node, gradient, normal, [0, *inner], t)
    return found


def _of_input(g: str, normal: str, inverse: str, inner: list[int], t: Tape) -> str:
    """r·(g − mean g − x̂·mean(g x̂)), means over the inner axes."""
    axes = t.sizes(*inner)
    average = t.add("ReduceMean", [g, axes], keepdims=1)
    along = t.add("ReduceMean", [t.add("Mul", [g, normal]), axes], keepdims=1)
    centred = t.add("Sub", [t.add("Sub", [g, average]), t.add("Mul", [normal, along])])
    return t.add("Mul", [centred, inverse])


def _of_affine(node: onnx.NodeProto, gradient: str, normal: str, outer: list[int], t: Tape) -> Adjoints:
    """Of γ and β: Σ ḡx̂ and Σ ḡ over the outer axes."""
    found: Adjoints = [None, None]
    for i, place in enumerate((1, 2)):
        if t.wants(node, place):
            each = t.add("Mul", [gradient, normal]) if place == 1 else gradient
            dims = t.dims(node.input[place], node)
            total = t.add("ReduceSum", [each, t.sizes(*outer)], keepdims=0) if outer else each
            found[i] = Adjoint(total, dims)
    return found


# Below this the rest of 1 − Σwᵢ²/m is rounding, and there is one number for each channel.
ONE_NUMBER = 1e-6


def is_trained(node: onnx.NodeProto, trainable: Collection[str], fixed: Collection[str]) -> bool:
    """Whether this BatchNormalization follows the data: its scale or its bias is trained.

    One whose scale and bias are `fixed`, constants and no parameters, does as the layers before it do.
    """
    scale, bias = node.input[1:3]
    return scale in trainable or bias in trainable or (scale in fixed and bias in fixed)


@forward("BatchNormalization")
def batch_norm_forward(node: onnx.NodeProto, t: Tape) -> None:
    """In training y = γ·x̂ + β with x̂ = (x − μ)·r and r = 1/√(σ² + ε); as it is where it is frozen.

    μ = Σ wᵢ·mean(xᵢ) and σ² = Σ wᵢ·mean((xᵢ − μ)²) for each channel, means over the positions of a row.
    What is saved for the gradient are x − μ and r, in a shape that goes with x. Running statistics move
    by 1 − momentum towards those of the batch: see `_remember`.
    """
    fixed = [name for name in node.input[1:3] if t.value(name) is not None]
    if node.output[0] not in t.active or not is_trained(node, t.trainable, fixed):
        t.copy(node)
        return
    x, gamma, beta, *_ = node.input
    dims = t.dims(x, node)
    if dims[0] != BATCH or any(isinstance(size, str) for size in dims[1:]):
        what = "its first axis is not the batch, or another varies"
        raise untrainable(node, what, "freeze its scale and bias")
    mean = _mean(x, len(dims), t)
    centred = t.add("Sub", [x, mean])
    variance = _mean(t.add("Mul", [centred, centred]), len(dims), t)
    epsilon = t.number(attributes_of(node).get("epsilon", 1e-5))
    inverse = t.add("Reciprocal", [t.add("Sqrt", [t.add("Add", [variance, epsilon])])])
    t.saved[node.output[0]] = centred, inverse
    # γ·r is small: x̂ itself is never written.
    gamma, beta = (_beside(parameter, len(dims), t) for parameter in (gamma, beta))
    scaled = t.add("Mul", [centred, t.add("Mul", [gamma, inverse])])
    t.add("Add", [scaled, beta], node.output[0])
    _remember(node, mean, variance, _positions(dims), t)


def _positions(dims: Dims) -> int:
    """How many numbers of a channel one row has."""
    return math.prod(size for size in dims[2:] if isinstance(size, int))


def _mean(x: str, rank: int, to: Tape) -> str:
    """Σ wᵢ·mean(xᵢ) for each channel, `(1, channels, 1...)`."""
    rows = to.add("ReduceMean", [x, to.sizes(*range(2, rank))], keepdims=0) if rank > 2 else x
    if rank == 2:
        return to.add("Gemm", [to.row_shares, rows], transA=1)
    mean = to.add("Gemm", [to.row_shares, rows], transA=1)
    return to.add("Reshape", [mean, to.sizes(1, -1, *([1] * (rank - 2)))])


def _beside(parameter: str, rank: int, to: Tape) -> str:
    return parameter if rank == 2 else to.add("Reshape", [parameter, to.sizes(-1, *([1] * (rank - 2)))])


def _remember(node: onnx.NodeProto, mean: str, variance: str, positions: int, to: Tape) -> None:
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


@backward("BatchNormalization")
def batch_norm(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """dβ = Σ ḡ, dγ = Σ ḡ·x̂, dx = γ·r·(ḡ − wᵢ/m·(dβ + x̂·dγ)), sums over rows and positions.

    With equal weights wᵢ/m is one over the number of summands: section 3 of the paper. Where it is frozen,
    dx = ḡ·γ·r with the running variance in r; other layers may compute γ and β.
    """
    x, gamma, _, mean, variance = node.input
    dims, found = t.dims(x, node), list[Adjoint | None]([None, None, None])
    rank = len(dims)
    if node.output[0] not in t.saved:
        epsilon = t.number(attributes_of(node).get("epsilon", 1e-5))
        deviation = t.add("Sqrt", [t.add("Add", [variance, epsilon])])
        channels = (1, dims[1], *(1 for _ in dims[2:]))
        if t.wants(node, 0):
            factor = t.add("Div", [gamma, deviation])
            found[0] = t.times(gradients[0], _beside(factor, rank, t), channels)
        if t.wants(node, 1) or t.wants(node, 2):
            centred = t.add("Sub", [x, _beside(mean, rank, t)])
            normal = t.add("Div", [centred, _beside(deviation, rank, t)])
            gradient, axes = t.whole(gradients[0], node), t.sizes(0, *range(2, rank))
            each = t.add("Mul", [gradient, normal])
            found[1:] = [
                Adjoint(t.add("ReduceSum", [name, axes], keepdims=0), dims[1:2]) for name in (each, gradient)
            ]
        return found
    centred, inverse = t.saved[node.output[0]]
    gradient, axes = t.whole(gradients[0], node), t.sizes(0, *range(2, rank))
    product = t.add("ReduceSum", [t.add("Mul", [gradient, centred]), axes], keepdims=0)
    scale = t.add("Mul", [product, t.add("Reshape", [inverse, t.sizes(-1)])])
    shift = t.add("ReduceSum", [gradient, axes], keepdims=0)
    found[1], found[2] = Adjoint(scale, dims[1:2]), Adjoint(shift, dims[1:2])
    if t.wants(node, 0):
        slope = t.add("Mul", [_beside(scale, rank, t), inverse])
        factor = t.add("Mul", [_beside(gamma, rank, t), inverse])
        terms = (slope, _beside(shift, rank, t), factor)
        found[0] = Adjoint(_input_gradient(gradient, centred, terms, dims, t), dims)
    return found


def _input_gradient(gradient: str, centred: str, terms: tuple[str, str, str], dims: Dims, to: Tape) -> str:
    """(ḡ − wᵢ/m·(slope·(x − μ) + shift))·factor, with everything small multiplied beforehand."""
    share = to.row_shares
    if len(dims) > 2:
        share = to.beside(to.add("Mul", [share, to.number(1 / _positions(dims))]), len(dims))
    slope, shift, factor = terms
    if len(dims) > 2:
        each = to.add("Mul", [share, factor])
        slope, shift = (to.add("Mul", [term, each]) for term in (slope, shift))
        common = to.add("Add", [to.add("Mul", [centred, slope]), shift])
        return to.add("Sub", [to.add("Mul", [gradient, factor]), common])
    common = to.add("Add", [to.add("Mul", [centred, slope]), shift])
    rest = to.add("Sub", [gradient, to.add("Mul", [common, share])])
    return to.add("Mul", [rest, factor])


# Of the ONNX operator, where no ratio is given.
RATIO = 0.5


@forward("Dropout")
def dropout_forward(node: onnx.NodeProto, t: Tape) -> None:
    """x·k with k = 1/(1 − r) where the noise is not below the ratio r, and 0 elsewhere.

    Outside of training, where the third input is left out, it is the identity. The noise belongs to the
    seed and the number of the update, so the same step draws the same mask again. It has one row for each
    sample; where the tensor has another form, as in a recurrent network, it is reshaped.
    """
    x, ratio, training = (*node.input, "", "")[:3]
    mask = node.output[1] if len(node.output) > 1 else ""
    if not training or not t.known(training, node, "input that says whether it is training"):
        t.add("Identity", [x], node.output[0])
        if mask:
            yes = numpy_helper.from_array(np.ones(1, np.bool_))
            t.add("ConstantOfShape", [t.shape_of(x, node)], mask, value=yes)
        return
    dims = t.dims(x, node)
    share = RATIO if not ratio else float(t.known(ratio, node, "ratio"))
    if not 0 <= share < 1:
        raise untrainable(node, "its ratio must be a number from 0 to less than 1")
    row = row_elements(dims)
    if row is None:
        raise untrainable(node, "what it is applied to does not grow with the batch")
    noise = t.noise(row)
    if dims[0] != BATCH or len(dims) != 2:
        noise = t.like(noise, x, node)
    kept = t.add("Cast", [t.add("GreaterOrEqual", [noise, t.number(share)], mask)], to=TensorProto.FLOAT)
    factor = t.saved[node.output[0]] = t.add("Mul", [kept, t.number(1 / (1 - share))])
    t.add("Mul", [x, factor], node.output[0])


@backward("Dropout")
def dropout(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ·k with the factors k of the forward pass."""
    factor = t.saved.get(node.output[0])
    return [t.times(gradients[0], factor, t.dims(node.input[0], node)) if factor else gradients[0]]
