"""Pooling over everything, for which the gradient builder has no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.bundles.graph.writer import untrainable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter


def global_max_pool(node: onnx.NodeProto, to: Rewriter) -> None:
    """MaxPool with a kernel as large as the grid, which is the definition in the ONNX specification."""
    sizes = to.shape(node.input[0], node)[2:]
    kernel = [size for size in sizes if size is not None]
    if len(kernel) < len(sizes):
        raise untrainable(node, "the grid varies in size")
    to.add("MaxPool", [node.input[0]], node.output[0], kernel_shape=kernel)


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "GlobalMaxPool": global_max_pool,
}
