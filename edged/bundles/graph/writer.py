"""Writing the nodes that take the place of an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    import onnx
    from numpy.typing import NDArray

Shape = tuple[int | None, ...]
# Input of a step graph that holds all the noise of a step, a row of it for every sample.
NOISE = "step.noise"


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

    Parameters
    ----------
    shapes
        Shapes of the tensors that are known; None is a size that varies, as the batch does.
    taken
        Names that must not be used again.
    row_weights
        Tensor `(batch, 1)` that says how much each row counts in the loss. What the weights of a batch
        add up to is what the gradients are scaled with: not always 1. See `row_shares`.
    loss_gradient
        Tensor that holds the gradient of the loss with respect to itself, which is 1.
    values
        Constants of the graph that is lowered: indices, axes and the like.
    read
        Names of the tensors that its nodes read.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        taken: Iterable[str] = (),
        *,
        row_weights: str = "",
        loss_gradient: str = "",
        values: Mapping[str, NDArray[Any]] | None = None,
        read: Container[str] = (),
    ) -> None:
        super().__init__()
        self.constants: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.row_weights = row_weights
        self.loss_weights = row_weights  # where classes count differently, others: see cross_entropy
        self.loss_gradient = loss_gradient
        self._shapes = shapes
        self._values = values or {}
        self.read_by_nodes = read
        self._taken = set(taken)
        self.noise_width = 0
        self.remembered: dict[str, str] = {}
        self._row_shares = ""

    @property
    def row_shares(self) -> str:
        """Tensor `(batch, 1)`: the share of each row in the batch; the shares add up to 1."""
        if not self._row_shares:
            total = self.add("ReduceSum", [self.row_weights], keepdims=1)
            self._row_shares = self.add("Div", [self.row_weights, total])
        return self._row_shares

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

    def wrote(self, name: str) -> bool:
        """Whether a node written so far has this output."""
        return any(name in node.output for node in self.nodes)

    def noise(self, elements: int) -> str:
        """A tensor `(batch, elements)` of uniform random numbers in [0, 1), new ones in every step."""
        start, self.noise_width = self.noise_width, self.noise_width + elements
        bounds = self.sizes(start), self.sizes(self.noise_width)
        return self.add("Slice", [NOISE, *bounds, self.sizes(1)])

    def remember(self, parameter: str, new: str) -> None:
        """Let a frozen parameter take the value of tensor `new` when the step is accepted."""
        self.remembered[parameter] = new

    def value(self, name: str) -> NDArray[Any] | None:
        """The value of a constant of the graph that is lowered; None of what is computed or trained."""
        return self._values.get(name)

    def shape(self, name: str, node: onnx.NodeProto) -> Shape:
        """The shape of a tensor; refuses `node` where it is not known."""
        shape = self._shapes.get(name)
        if shape is None:
            raise refusal(node, f"the shape of {name!r} is not known")
        return shape


def refusal(node: onnx.NodeProto, reason: str) -> BundleError:
    """The error for a node that cannot be expressed in standard operators.

    A gradient's node bears the name of the model's own node that it is of.
    """
    return BundleError(
        f"operator {node.op_type} cannot be trained by the portable engine: {reason}",
        where=f"node {(node.name or node.output[0]).partition('_Grad/')[0]}",
        remedy="build with --engine native, or freeze what is before it",
    )


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes of a node by name; text as str."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
