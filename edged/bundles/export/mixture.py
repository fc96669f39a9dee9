"""What a stream serves as one ONNX file: the networks of a model, how much each counts, and the head.

All of them are constants in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edged.bundles.graph.writer import NodeWriter
from edged.domain.bundle_contents import EXPERTS, FLOOR, MIX_WEIGHTS
from edged.domain.child_orders import LinearHead, MixtureOrder
from edged.errors import BundleError


def export_mixture(order: MixtureOrder) -> None:
    """Write the file; its first output, under its own name, is log p of the mixture but for a constant.

    Raises BundleError when the model has another number of experts than weights.
    """
    model = onnx.load(str(order.model))
    _Mixer(model.graph, order).mix()
    onnx.checker.check_model(model, full_check=True)
    order.out.write_bytes(model.SerializeToString())


class _Mixer:
    """Rewires the graph of a model."""

    def __init__(self, graph: onnx.GraphProto, order: MixtureOrder) -> None:
        self._graph, self._order, self._to = graph, order, NodeWriter(prefix="mixture")
        self._input, self._logits = graph.input[0].name, graph.output[0].name

    def mix(self) -> None:
        """Let the first output be the mixture."""
        weights, head = self._order.weights, self._order.head
        own = weights if head is None else weights[:-1]
        if not own:
            raise BundleError("a mixture without weights of experts", where=str(self._order.model))
        within = f"mixture.{self._logits}"
        for node in self._graph.node:
            for names in (node.input, node.output):
                names[:] = [within if name == self._logits else name for name in names]
        parts = [self._own(within, own)]
        if head is not None:
            parts.append(
                self._to.add("Mul", [self._head(head), self._constant("mixture.head.weight", weights[-1])])
            )
        self._to.add("Sum", parts, self._logits)
        # What computed the logits may bear their name still.
        self._to.nodes[-1].name = "mixture"
        self._graph.node.extend(self._to.nodes)

    def _own(self, logits: str, weights: Sequence[float]) -> str:
        """What the networks say, weighted."""
        for tensor in self._graph.initializer:
            if tensor.name == MIX_WEIGHTS:
                return self._weighted(logits, tensor, weights)
        if len(weights) != 1:
            raise BundleError(
                f"one network, and weights of {len(weights)} experts", where=str(self._order.model)
            )
        said = self._likelihood(logits, "mixture.network")
        return self._to.add("Mul", [said, self._constant("mixture.network.weight", weights[0])])

    def _weighted(self, logits: str, tensor: onnx.TensorProto, weights: Sequence[float]) -> str:
        shape = tuple(tensor.dims)
        if shape != (1, len(weights), 1):
            raise BundleError(
                f"{EXPERTS}: {shape[1]} in the model, weights of {len(weights)}", where=str(self._order.model)
            )
        values = np.array(weights, np.float32).reshape(shape)
        tensor.CopyFrom(numpy_helper.from_array(values, MIX_WEIGHTS))
        return logits

    def _head(self, head: LinearHead) -> str:
        """What the head says: log(p + FLOOR)."""
        name, columns = "mixture.head", len(head.mean)
        ends = [self._constant(f"{name}.{end}", [at], np.int64)
                for end, at in (("first", 0), ("end", columns), ("axis", 1))]  # fmt: skip
        seen = self._to.add("Slice", [self._input, *ends])
        centred = self._to.add("Sub", [seen, self._constant(f"{name}.mean", [head.mean])])
        scaled = self._to.add("Mul", [centred, self._constant(f"{name}.scale", [head.scale])])
        low, high = (
            self._constant(f"{name}.{end}", at) for end, at in (("least", -head.clip), ("most", head.clip))
        )
        z = self._to.add("Clip", [scaled, low, high])
        scores = self._to.add("MatMul", [z, self._constant(f"{name}.weights", head.weights)])
        scores = self._to.add("Add", [scores, self._constant(f"{name}.prior", [head.prior])])
        logits = self._to.add("Mul", [scores, self._constant(f"{name}.sharpness", head.sharpness)])
        return self._likelihood(logits, name)

    def _likelihood(self, logits: str, name: str) -> str:
        share = self._to.add("Softmax", [logits], axis=1)
        return self._to.add("Log", [self._to.add("Add", [share, self._constant(f"{name}.floor", FLOOR)])])

    def _constant(self, name: str, value: Any, dtype: Any = "float32") -> str:
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name
