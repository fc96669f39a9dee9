"""Writing the nodes that take the place of an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from edged.errors import BundleError

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Shape = tuple[int | None, ...]


class NodeWriter(ABC):
    """Standard nodes in the order in which they are written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    @abstractmethod
    def name(self, hint: str) -> str:
        """A name that nothing in the whole graph has."""

    def add(self, operator: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        """Write one standard node; the name of its first output, which is a new one unless given."""
        name = output or self.name(operator.lower())
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def operator(self, operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        """Write one standard node with several outputs."""
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], **attributes))


class Writer(NodeWriter):
    """Collects standard nodes and the constants they read.

    `taken` are names that must not be used again, `values` the constants of the graph that is written
    (indices, axes and the like), `shapes` those that are known of its tensors, with None for a size that
    varies, as the batch does.
    """

    def __init__(
        self,
        taken: Iterable[str],
        values: Mapping[str, NDArray[Any]] | None = None,
        shapes: Mapping[str, Shape] | None = None,
    ) -> None:
        super().__init__()
        self.constants: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._values, self._shapes = values or {}, shapes or {}
        self._taken = set(taken)

    def copy(self, node: onnx.NodeProto) -> None:
        """Take a node over as it is."""
        self.nodes.append(node)

    def name(self, hint: str) -> str:
        """A name that nothing in the graph has."""
        number = len(self._taken)
        while f"step.{hint}.{number}" in self._taken:
            number += 1
        self._taken.add(f"step.{hint}.{number}")
        return f"step.{hint}.{number}"

    def number(self, value: float) -> str:
        """Add a float32 scalar and return its name."""
        return self.constant(np.float32(value))

    def sizes(self, *values: int) -> str:
        """An int64 vector: axes, shapes and the like."""
        return self.constant(np.array(values, np.int64))

    def constant(self, value: Any) -> str:
        """A constant tensor; equal ones are written once."""
        array = np.asarray(value)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.name("constant")
            self.constants.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def value(self, name: str) -> NDArray[Any] | None:
        """The value of a constant of the graph; None of what is computed or trained."""
        return self._values.get(name)

    def shape(self, name: str, node: onnx.NodeProto) -> Shape:
        """The shape of a tensor; refuses `node` where it is not known."""
        shape = self._shapes.get(name)
        if shape is None:
            raise untrainable(node, f"the shape of {name!r} is not known")
        return shape


def untrainable(node: onnx.NodeProto, reason: str, remedy: str = "") -> BundleError:
    """The error for a node that no gradient comes through."""
    return BundleError(
        f"operator {node.op_type} cannot be trained through: {reason}",
        where=f"node {node.name or node.output[0]}",
        remedy=remedy or "freeze what is before it, or express it by other operators",
    )


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes of a node by name; text as str."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
