"""What the native engine would train wrongly, or die of, without a word: found before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.artifacts.rewriting.batch_norm import is_trained
from edged.artifacts.rewriting.recurrent import going_back, more_than_plain
from edged.artifacts.rewriting.rewriter import constants
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import onnx

_EXPORT = "build with --engine portable, or export the model in evaluation mode, without dropout"
_FREEZE = "build with --engine portable, or freeze its scale and bias"
_WHOLE = "train both weights, or freeze the layer with all before it, or build with --engine portable"
_PLAIN = "use a plain layer, or, where all before it and itself is frozen, build with --engine portable"
_UNSAFE = {
    "AveragePool": (
        "has a gradient that ends the process when the batch is dynamic",
        "use MaxPool, ReduceMean or a strided Conv instead",
    ),
    "ConvTranspose": ("has a gradient that is not implemented", "build with --engine portable"),
    "Resize": ("has a gradient that is not implemented", "build with --engine portable"),
}


def native_refusal(graph: onnx.GraphProto, trainable: Iterable[str]) -> BundleError | None:
    """Why the native engine must not train this graph; None when it may.

    Operators between a trainable parameter and the output are looked at, dropout and recurrent layers
    wherever they are. A BatchNormalization whose scale and bias are frozen passes: it becomes plain
    arithmetic.
    """
    trained, reached, fixed = set(trainable), set(trainable), constants(graph)
    for node in graph.node:
        on_the_way = not reached.isdisjoint(node.input)
        if reason := more_than_plain(node) or ("" if on_the_way else going_back(node)):
            return _refusal(node, f"does not run in training: {reason}", _PLAIN)
        if node.op_type == "Dropout":
            return _refusal(node, "draws numbers that a resumed run would not draw again", _EXPORT)
        if not on_the_way:
            continue
        reached.update(node.output)
        if node.op_type == "BatchNormalization" and is_trained(node, trained, fixed):
            return _refusal(node, "would be trained without following its running statistics", _FREEZE)
        if node.op_type in _UNSAFE:
            return _refusal(node, *_UNSAFE[node.op_type])
        if fixed_weights := _fixed_weights(node, reached):
            return _refusal(node, f"has a gradient that ends the process where {fixed_weights}", _WHOLE)
    return None


def _fixed_weights(node: onnx.NodeProto, reached: Collection[str]) -> str:
    """Which weights, W and R, no gradient goes to; nothing for all but recurrent layers.

    The kernels of LSTMGrad and GRUGrad (1.19.2) write both gradients, wanted or not. Those of the input, the
    bias and the initial states they leave out.
    """
    if node.op_type not in ("GRU", "LSTM"):
        return ""
    weights = zip(("W", "R"), node.input[1:3], strict=True)
    fixed = [f"{place} ({name})" for place, name in weights if name not in reached]
    return f"{' and '.join(fixed)} {'are' if len(fixed) > 1 else 'is'} not trained" if fixed else ""


def _refusal(node: onnx.NodeProto, what: str, remedy: str) -> BundleError:
    return BundleError(f"operator {node.op_type} {what}", where=f"node {node.name}", remedy=remedy)
