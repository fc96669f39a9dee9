"""From operators that only onnxruntime's training build has to standard ones.

One file a family of operators; each rule states its formula and its source. A rule reads a node and
writes standard nodes (opset 17) that produce the same outputs. What has no rule and is no standard
operator is refused by the name of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from edged.bundles.graph.writer import Writer, refusal
from edged.bundles.lowering import (
    activations,
    arithmetic,
    batch_norm,
    convolution,
    dropout,
    gru,
    indexing,
    loss_gradients,
    lstm,
    normalisation,
    pooling,
    reshape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OPSET", "RULES", "Writer", "lower"]

OPSET = 17
RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    **activations.RULES,
    **arithmetic.RULES,
    **batch_norm.RULES,
    **convolution.RULES,
    **dropout.RULES,
    **gru.RULES,
    **indexing.RULES,
    **loss_gradients.RULES,
    **lstm.RULES,
    **normalisation.RULES,
    **pooling.RULES,
    **reshape.RULES,
}


def lower(node: onnx.NodeProto, to: Writer) -> None:
    """Write `node` in standard operators.

    Raises
    ------
    BundleError
        When there is no rule for it, or the rule does not cover it.
    """
    if node.op_type in RULES:
        RULES[node.op_type](node, to)
    elif node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type, OPSET, ""):
        to.copy(node)
    else:
        raise refusal(node, "there is no lowering for it")
