"""Rewriting a model before its training graph is made: into what onnxruntime's gradient builder can derive.

The builder has no gradient for some operators and a wrong one for others. One file a family; each rule
reads a node and writes standard nodes (opset 17) with the same outputs, from which both engines can be
made. Parameters keep their names, and the inference model keeps the operators it came with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from edged.bundles.rewriting import (
    activations,
    batch_norm,
    dropout,
    elementwise,
    indexing,
    normalisation,
    pooling,
    recurrent,
    reductions,
    split,
)
from edged.bundles.rewriting.dropout import inference_form
from edged.bundles.rewriting.rewriter import Rewriter
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Rule = Callable[[onnx.NodeProto, Rewriter], None]

__all__ = ["REWRITES", "Rewriter", "inference_form", "shortened", "trainable_form"]

REWRITES: Mapping[str, Rule] = {
    **activations.RULES,
    **batch_norm.RULES,
    **dropout.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **normalisation.RULES,
    **pooling.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **split.RULES,
}


def trainable_form(
    model: onnx.ModelProto,
    trainable: Iterable[str],
    *,
    note: Callable[[str], None] | None = None,
    refused: Callable[[onnx.NodeProto, BundleError], None] | None = None,
) -> onnx.ModelProto:
    """The model as the gradient builder must see it, so that the `trainable` parameters can be trained.

    Parameters
    ----------
    model
        One that `conform` returned; it is not changed.
    trainable
        Names of the parameters that are trained.
    note
        Told, in one line, what was rewritten.
    refused
        Takes each node that cannot be trained in any form, and why; it then stays as it is.

    Raises
    ------
    BundleError
        When a node cannot be trained in any form, naming it, and nobody takes that.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    rules = _rules(model.graph, trainable)
    read = [node for node, rule in zip(model.graph.node, rules, strict=True) if rule is not _keep]
    to = Rewriter(inference_form(model), trainable, read)
    changed: dict[str, list[str]] = {}
    for node, rule in zip(model.graph.node, rules, strict=True):
        try:
            if _rewritten(node, rule, to):
                changed.setdefault(node.op_type, []).append(node.name)
        except BundleError as problem:
            if refused is None:
                raise
            refused(node, problem)
            to.copy(node)
    if changed and note is not None:
        told = "; ".join(f"{operator} ({shortened(names)})" for operator, names in changed.items())
        note(f"rewritten before training, see docs/preflight.md: {told}")
    del made.graph.node[:]
    made.graph.node.extend(to.nodes)
    made.graph.initializer.extend(to.constants)
    return made


def _rewritten(node: onnx.NodeProto, rule: Rule, to: Rewriter) -> bool:
    """Write the node by its rule; whether anything else than the node itself was written."""
    count = len(to.nodes)
    rule(node, to)
    return to.nodes[count:] != [node]


def shortened(names: Sequence[str], limit: int = 4) -> str:
    """Names in one line, the first ones where there are many."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _rules(graph: onnx.GraphProto, trainable: Iterable[str]) -> list[Rule]:
    """What becomes of each node: those that no gradient comes through stay, but for dropout."""
    reached = set(trainable)
    rules: list[Rule] = []
    for node in graph.node:
        comes_through = not reached.isdisjoint(node.input)
        if comes_through:
            reached.update(node.output)
        wanted = comes_through or node.op_type in dropout.RULES
        rules.append(REWRITES.get(node.op_type, _keep) if wanted else _keep)
    return rules


def _keep(node: onnx.NodeProto, to: Rewriter) -> None:
    to.copy(node)
