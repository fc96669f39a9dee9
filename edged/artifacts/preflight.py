"""What would train wrongly, or end the process, without a word: refused before anything is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

_UNSAFE = {
    "BatchNormalization": (
        "would be trained with the statistics of each batch, whatever the export says",
        "fold it into the layer before it, or train only what comes after it",
    ),
    "AveragePool": (
        "has a gradient that ends the process when the batch is dynamic",
        "use MaxPool, ReduceMean or a strided Conv instead",
    ),
}


def refuse_unsafe(graph: onnx.GraphProto, trainable: Iterable[str]) -> None:
    """Raise BundleError for an operator between a trainable parameter and the output that is not safe."""
    reached = set(trainable)
    for node in graph.node:
        if reached.isdisjoint(node.input):
            continue
        reached.update(node.output)
        if node.op_type in _UNSAFE:
            what, remedy = _UNSAFE[node.op_type]
            raise BundleError(f"operator {node.op_type} {what}", where=f"node {node.name}", remedy=remedy)
