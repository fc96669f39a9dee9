"""Normalisations that the gradient builder does not know or knows in one form only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edged.bundles.graph.writer import attributes_of, untrainable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edged.bundles.rewriting.rewriter import Rewriter


# Constants of up to so many elements are merged by onnxruntime where they are equal. The builder makes a
# gradient for the scale of every LayerNormalization, and refuses two under the name of one constant.
SHARED = 8


def layer_normalization(node: onnx.NodeProto, to: Rewriter) -> None:
    """As it is, with everything the gradient is made from: a bias, the mean and the inverse deviation.

    Of single numbers, which the native gradient refuses, the bias is all that is left.
    """
    x, scale = node.input[:2]
    bias = (*node.input, "")[2] or to.add("Mul", [scale, to.number(0)])
    if _is_single(node, to):
        nothing = to.add("Mul", [to.add("Sub", [x, x]), scale])
        to.add("Add", [nothing, bias], node.output[0])
        return
    outputs = [name or to.name("statistic") for name in (*node.output, "", "")[:3]]
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.input[:], made.output[:]
    made.input.extend([x, scale, bias])
    made.output.extend(outputs)
    to.copy(made)


def _is_single(node: onnx.NodeProto, to: Rewriter) -> bool:
    shape = to.shape(node.input[0], node)
    first = attributes_of(node).get("axis", -1) % len(shape)
    return all(size == 1 for size in shape[first:])


def instance_normalization(node: onnx.NodeProto, to: Rewriter) -> None:
    """γ·(x − μ)/√(σ² + ε) + β, mean and variance over everything behind the channel (Ulyanov et al. 2016).

    That is a LayerNormalization from axis 2 on, with γ and β for each channel behind it. The mean is taken
    off before, because LayerNormalization finds σ² as E[x²] − μ², which is noise where μ is large.
    """
    x, scale, bias = node.input
    shape = to.shape(x, node)
    inner = [size for size in shape[2:] if size is not None]
    if len(shape) < 3 or len(inner) != len(shape) - 2:
        raise untrainable(node, "the sizes of what it normalises vary")
    mean = to.add("ReduceMean", [x], axes=list(range(2, len(shape))), keepdims=1)
    centred = to.add("Sub", [x, mean])
    form = _by_steps if math.prod(inner) <= SHARED else _by_layers
    normal = form(centred, inner, attributes_of(node).get("epsilon", 1e-5), to)
    _for_each_channel(normal, scale, bias, len(inner), node.output[0], to)


def _by_steps(centred: str, inner: list[int], epsilon: float, to: Rewriter) -> str:
    square = to.add("Mul", [centred, centred])
    variance = to.add("ReduceMean", [square], axes=[2 + i for i in range(len(inner))], keepdims=1)
    deviation = to.add("Sqrt", [to.add("Add", [variance, to.number(epsilon)])])
    return to.add("Div", [centred, deviation])


def _by_layers(centred: str, inner: list[int], epsilon: float, to: Rewriter) -> str:
    outputs = [to.name("normal"), to.name("statistic"), to.name("statistic")]
    inputs = [centred, *(_filled(inner, value, to) for value in (1, 0))]
    to.copy(helper.make_node("LayerNormalization", inputs, outputs, name=outputs[0], axis=2, epsilon=epsilon))
    return outputs[0]


def _filled(sizes: list[int], value: float, to: Rewriter) -> str:
    # Each node its own, for the same reason.
    name = to.name("filled")
    to.constants.append(numpy_helper.from_array(np.full(sizes, value, np.float32), name))
    return name


def _for_each_channel(x: str, scale: str, bias: str, inner: int, output: str, to: Rewriter) -> None:
    """γ·x + β, leaving out what is written in the model as 1 and 0."""
    for operator, parameter, neutral in (("Mul", scale, 1), ("Add", bias, 0)):
        value = to.value(parameter)
        if value is None or not (value == neutral).all():
            shaped = to.add("Reshape", [parameter, to.sizes(-1, *([1] * inner))])
            x = to.add(operator, [x, shaped])
    to.add("Identity", [x], output)


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
}
