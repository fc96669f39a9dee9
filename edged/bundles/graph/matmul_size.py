"""How much work the largest operator of a network is: what decides whether more threads can help it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx

from edged.bundles.graph.edit import shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Shapes = Mapping[str, Sequence[int | str]]


def largest_product(model: onnx.ModelProto) -> int:
    """Multiply-adds of the largest matrix product or convolution, for one row of a batch.

    A recurrent layer counts with one of its steps, because they follow one another. A size that nobody
    knows, such as that of the batch, counts as 1.
    """
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes: dict[str, Sequence[int | str]] = {
        value.name: shape_of(value) for value in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    return max((_multiply_adds(node, shapes) for node in graph.node), default=0)


def _multiply_adds(node: onnx.NodeProto, shapes: Shapes) -> int:
    of = [shapes.get(name, ()) for name in (*node.input, *node.output)]
    result = shapes.get(node.output[0], ()) if node.output else ()
    if node.op_type in {"MatMul", "Gemm"}:
        # Every element of the result is a sum over the axis that both operands share.
        turned = any(item.name == "transA" and item.i for item in node.attribute)
        return _elements(result) * _elements(of[0][-2:][:1] if turned else of[0][-1:])
    if node.op_type == "Conv":
        return _elements(result) * _elements(of[1][1:])
    if node.op_type == "ConvTranspose":
        return _elements(of[0]) * _elements(of[1][1:])
    if node.op_type in {"LSTM", "GRU", "RNN"}:
        return _elements(of[1]) + _elements(of[2])
    return 0


def _elements(sizes: Sequence[int | str]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))
