"""What a stream serves as one ONNX file: the networks of a model, how much each counts, and the head.

All of them are constants in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edged.bundles import require
from edged.domain.model_files import EXPERTS, FLOOR, MIX_WEIGHTS
from edged.errors import BundleError

if TYPE_CHECKING:
    import onnx

    from edged.domain.child_orders import LinearHead, MixtureOrder


def export_mixture(order: MixtureOrder) -> None:
    """Write the file; its first output, under its own name, is log p of the mixture but for a constant.

    Raises BundleError when the model has another number of experts than weights.
    """
    require()
    import onnx

    model = onnx.load(str(order.model))
    _Mixer(model.graph, order).mix()
    onnx.checker.check_model(model, full_check=True)
    order.out.write_bytes(model.SerializeToString())


class _Mixer:
    """Rewires the graph of a model."""

    def __init__(self, graph: onnx.GraphProto, order: MixtureOrder) -> None:
        self._graph, self._order = graph, order
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
                self._add("Mul", [self._head(head), self._constant("mixture.head.weight", weights[-1])])
            )
        self._node("Sum", parts, self._logits)

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
        return self._add("Mul", [said, self._constant("mixture.network.weight", weights[0])])

    def _weighted(self, logits: str, tensor: onnx.TensorProto, weights: Sequence[float]) -> str:
        import numpy as np
        from onnx import numpy_helper

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
        import numpy as np

        name, columns = "mixture.head", len(head.mean)
        ends = [self._constant(f"{name}.{end}", [at], np.int64)
                for end, at in (("first", 0), ("end", columns), ("axis", 1))]  # fmt: skip
        seen = self._add("Slice", [self._input, *ends])
        centred = self._add("Sub", [seen, self._constant(f"{name}.mean", [head.mean])])
        scaled = self._add("Mul", [centred, self._constant(f"{name}.scale", [head.scale])])
        low, high = (
            self._constant(f"{name}.{end}", at) for end, at in (("least", -head.clip), ("most", head.clip))
        )
        z = self._add("Clip", [scaled, low, high])
        scores = self._add("MatMul", [z, self._constant(f"{name}.weights", head.weights)])
        scores = self._add("Add", [scores, self._constant(f"{name}.prior", [head.prior])])
        logits = self._add("Mul", [scores, self._constant(f"{name}.sharpness", head.sharpness)])
        return self._likelihood(logits, name)

    def _likelihood(self, logits: str, name: str) -> str:
        share = self._add("Softmax", [logits], axis=1)
        return self._add("Log", [self._add("Add", [share, self._constant(f"{name}.floor", FLOOR)])])

    def _constant(self, name: str, value: Any, dtype: Any = "float32") -> str:
        import numpy as np
        from onnx import numpy_helper

        self._graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def _add(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        return self._node(operator, inputs, f"mixture.{len(self._graph.node)}", **attributes)

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self._graph.node.append(helper.make_node(operator, inputs, [output], **attributes))
        return output
