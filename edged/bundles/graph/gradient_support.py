"""Where gradients come through: which operators onnxruntime's gradient builder can derive, and between what.

The table is of the training build 1.19.2; a test asks its builder for every entry, and for every standard
operator that is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

# Standard operators with a gradient; LSTM and GRU become the training build's own before it is made.
DIFFERENTIABLE = frozenset({
    "Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "ConvTranspose",
    "Cos", "Div", "Dropout", "Erf", "Exp", "Expand", "Flatten", "GRU", "Gather", "GatherElements",
    "GatherND", "Gemm", "GlobalAveragePool", "Identity", "LSTM", "LayerNormalization", "LeakyRelu", "Log",
    "LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Pad", "Pow", "Reciprocal", "ReduceL2",
    "ReduceLogSumExp", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Resize", "ScatterElements",
    "ScatterND", "Sigmoid", "Sin", "Slice", "Softmax", "SoftmaxCrossEntropyLoss", "Split", "Sqrt",
    "Squeeze", "Sub", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
# Of onnxruntime's own operators, those that both engines train through.
CONTRIBUTED = frozenset({"FusedMatMul", "Gelu", "QuickGelu"})
CONTRIB_DOMAIN = "com.microsoft"
# Float inputs that no gradient goes to, by their places: bounds, ratios, scales.
_STOPS = {"Dropout": (1,), "OneHot": (1, 2), "Pow": (1,), "Range": (0, 1, 2), "Resize": (1, 2)}


def has_gradient(node: onnx.NodeProto) -> bool:
    """Whether the gradient builder knows the operator, in its own form."""
    if node.domain in ("", "ai.onnx"):
        return node.op_type in DIFFERENTIABLE
    return node.domain == CONTRIB_DOMAIN and node.op_type in CONTRIBUTED


def on_the_way(graph: onnx.GraphProto, trainable: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes through which a gradient must come from the graph's outputs to the trainable parameters.

    Shapes, indices and conditions are not among them, whatever they are computed from.
    """
    kinds = _kinds(graph)
    reached = set(trainable)
    ahead = []
    for node in graph.node:
        if not reached.isdisjoint(_differentiated(node, kinds)):
            reached.update(node.output)
            ahead.append(node)
    wanted = {value.name for value in graph.output}
    found = []
    for node in reversed(ahead):
        if not wanted.isdisjoint(node.output):
            wanted.update(_differentiated(node, kinds))
            found.append(node)
    return found[::-1]


def before(graph: onnx.GraphProto, node: onnx.NodeProto, trainable: Iterable[str]) -> list[str]:
    """The trainable parameters whose gradients come through this node."""
    kinds = _kinds(graph)
    wanted = set(_differentiated(node, kinds))
    for other in reversed(graph.node):
        if not wanted.isdisjoint(other.output):
            wanted.update(_differentiated(other, kinds))
    return [name for name in trainable if name in wanted]


def _differentiated(node: onnx.NodeProto, kinds: dict[str, int]) -> list[str]:
    """The inputs of a node that a gradient goes to: what is not known to be anything else is float32."""
    stops = _STOPS.get(node.op_type, ())
    return [
        name
        for place, name in enumerate(node.input)
        if place not in stops and kinds.get(name, TensorProto.FLOAT) == TensorProto.FLOAT
    ]


def _kinds(graph: onnx.GraphProto) -> dict[str, int]:
    """Element types by name, as far as they are written in the graph."""
    kinds = {
        str(value.name): int(value.type.tensor_type.elem_type)
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    return kinds | {str(tensor.name): int(tensor.data_type) for tensor in graph.initializer}
