"""A cheaper order of operators that comes to the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import helper

from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx

# Activations that never fall, so that the largest input has the largest output; every gradient operator
# reads the incoming gradient and the output.
_RISING = ("Relu", "LeakyRelu", "Sigmoid", "Tanh")


# What is put behind the name of a pooled tensor that is yet to be activated.
POOLED = ".pooled"


@dataclass(frozen=True)
class _Pair:
    """An activation in front of a maximum pooling, and the gradients of both."""

    activation: onnx.NodeProto
    pool: onnx.NodeProto
    pool_gradient: onnx.NodeProto
    activation_gradient: onnx.NodeProto

    def exchanged(self) -> dict[int, list[onnx.NodeProto]]:
        """What takes the place of each node, by its identity."""
        inner = f"{self.pool.output[0]}{POOLED}"
        pool = _rewired(self.pool, [self.activation.input[0]], [inner, self.pool.output[1]])
        activation = _rewired(self.activation, [inner], [self.pool.output[0]])
        gradient = _rewired(
            self.activation_gradient,
            [self.pool_gradient.input[0], self.pool.output[0]],
            [f"{inner}_grad"],
        )
        back = _rewired(
            self.pool_gradient,
            [f"{inner}_grad", self.pool_gradient.input[1]],
            list(self.activation_gradient.output),
        )
        return {
            id(self.activation): [],
            id(self.pool): [pool, activation],
            id(self.pool_gradient): [],
            id(self.activation_gradient): [gradient, back],
        }


def pooled_first(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes of a training graph with max(f(x)) computed as f(max(x)) where f never falls.

    The pooled tensor is smaller, so the activation and its gradient cost less, and its full-sized output is
    not kept for the backward pass. Values are the same to the bit. Gradients are too, except where f makes
    unequal inputs of one window equal: there f is flat, or so near to it that its output is rounded.
    """
    given = list(nodes)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in given:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    changes: dict[int, list[onnx.NodeProto]] = {}
    for node in given:
        pair = _pair(node, readers)
        if pair is not None:
            changes |= pair.exchanged()
    return [new for node in given for new in changes.get(id(node), [node])]


def _pair(activation: onnx.NodeProto, readers: dict[str, list[onnx.NodeProto]]) -> _Pair | None:
    if activation.op_type not in _RISING or attributes_of(activation).get("alpha", 0) < 0:
        return None
    pools, others = _parted(readers.get(activation.output[0], []), "MaxPool")
    if len(pools) != 1 or len(pools[0].output) < 2:
        return None
    pool_gradient = _only(readers.get(pools[0].output[1], []), "MaxPoolGrad")
    if pool_gradient is None:
        return None
    gradient = _only(readers.get(pool_gradient.output[0], []), f"{activation.op_type}Grad")
    if gradient is None or any(other is not gradient for other in others):
        return None
    return _Pair(activation, pools[0], pool_gradient, gradient)


def _parted(
    nodes: Sequence[onnx.NodeProto], operator: str
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    return [n for n in nodes if n.op_type == operator], [n for n in nodes if n.op_type != operator]


def _only(nodes: Sequence[onnx.NodeProto], operator: str) -> onnx.NodeProto | None:
    """The one node, if it is of this operator."""
    return nodes[0] if len(nodes) == 1 and nodes[0].op_type == operator else None


def _rewired(node: onnx.NodeProto, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    made = helper.make_node(node.op_type, inputs, outputs, name=node.name, domain=node.domain)
    made.attribute.extend(node.attribute)
    return made
