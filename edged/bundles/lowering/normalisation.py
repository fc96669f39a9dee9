"""Gradients of normalisations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.bundles.graph.writer import Writer, attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx


def layer_normalization_grad(node: onnx.NodeProto, to: Writer) -> None:
    """Of y = γ·x̂ + β with x̂ = (x − μ)·r, where r = 1/σ (Ba, Kiros and Hinton 2016, section 3).

    With g = ḡγ: dx = r·(g − mean g − x̂·mean(g x̂)), means over the normalised axes;
    dγ = Σ ḡx̂ and dβ = Σ ḡ over the other axes.
    """
    gradient, x, gamma, mean, inverse = node.input
    rank = len(to.shape(x, node))
    first = attributes_of(node).get("axis", -1) % rank
    inner, outer = list(range(first, rank)), list(range(first))
    normal = to.add("Mul", [to.add("Sub", [x, mean]), inverse])
    _input_gradient(node, to, to.add("Mul", [gradient, gamma]), normal, inner)
    if len(node.output) > 1 and node.output[1]:
        product = to.add("Mul", [gradient, normal])
        to.add("ReduceSum", [product, to.sizes(*outer)], node.output[1], keepdims=0)
    if len(node.output) > 2 and node.output[2]:
        to.add("ReduceSum", [gradient, to.sizes(*outer)], node.output[2], keepdims=0)


def _input_gradient(node: onnx.NodeProto, to: Writer, g: str, normal: str, inner: list[int]) -> None:
    average = to.add("ReduceMean", [g], axes=inner, keepdims=1)
    along = to.add("ReduceMean", [to.add("Mul", [g, normal])], axes=inner, keepdims=1)
    centred = to.add("Sub", [to.add("Sub", [g, average]), to.add("Mul", [normal, along])])
    to.add("Mul", [centred, node.input[4]], node.output[0])


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "LayerNormalizationGrad": layer_normalization_grad,
}
