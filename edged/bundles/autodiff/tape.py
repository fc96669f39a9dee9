"""The tape: the nodes of a step as they are written, what is known of the tensors, and rules of operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from edged.bundles.graph.writer import NodeWriter, untrainable

Dim = int | str
Dims = tuple[Dim, ...]

# The size of the first axis of everything that has one entry for each row.
BATCH = "batch"
# Inputs of a step graph: how much each row counts in the loss, `(batch, 1)`; noise, one row for each sample.
WEIGHTS = "step.row_weights"
NOISE = "step.noise"


@dataclass(frozen=True)
class TensorInfo:
    """What is known of the tensors of a graph.

    Attributes
    ----------
    dims
        Sizes by name. A size that depends on the batch is text, such as `batch` or `4*batch`: equal texts
        are equal sizes.
    kinds
        Element types by name, as in `TensorProto.DataType`.
    values
        Values of constants, of shapes that do not vary, and of what is computed from them.
    """

    dims: Mapping[str, Dims]
    kinds: Mapping[str, int]
    values: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Adjoint:
    """The gradient of the loss with respect to a tensor, of the tensor's rank.

    A size of 1 in `dims` where the tensor has more stands for the same number everywhere along that axis, so
    the gradient of a mean stays small until a rule needs all of it.
    """

    name: str
    dims: Dims


Adjoints = list[Adjoint | None]


class Tape(NodeWriter):
    """Writes the nodes of one training step.

    Parameters
    ----------
    info
        What is known of the tensors of the forward graph.
    taken
        Names that must not be used again.
    active
        Tensors that a gradient goes to.
    trainable
        Names of the trained parameters.
    loss
        The tensor that is the loss of the step, where it is one mean over the rows: it is written as a sum.
    """

    def __init__(
        self,
        info: TensorInfo,
        taken: Collection[str],
        *,
        active: set[str],
        trainable: Collection[str] = (),
        loss: str = "",
    ) -> None:
        super().__init__(taken, info.values)
        self.active, self.trainable = active, trainable
        self.row_weights, self.loss = WEIGHTS, loss
        """Weights of the rows, whose sum scales the gradients; it is not always 1. See `row_shares`."""
        self.saved: dict[str, Any] = {}
        """What a forward rule keeps for the backward rule, by the name of the node."""
        self.noise_width = 0
        self.remembered: dict[str, str] = {}
        self._info = info
        self._cache: dict[tuple[str, str], str] = {}

    # ---- what is known ------------------------------------------------------------------------

    def trial(self, name: str) -> Adjoint:
        """Return an adjoint without a tensor, for a walk that only looks for refusals."""
        return Adjoint("", self._info.dims.get(name, ()))

    def dims(self, name: str, node: onnx.NodeProto) -> Dims:
        """Sizes of a tensor of the forward graph; refuses `node` where they are not known."""
        found = self._info.dims.get(name)
        if found is None:
            raise untrainable(node, f"the shape of {name!r} is not known")
        return found

    def fixed(self, name: str, node: onnx.NodeProto) -> tuple[int, ...]:
        """Sizes of a tensor that must not depend on the batch."""
        dims = self.dims(name, node)
        if any(isinstance(size, str) for size in dims):
            raise untrainable(node, f"the shape of {name!r} varies with the batch")
        return tuple(size for size in dims if isinstance(size, int))

    def known(self, name: str, node: onnx.NodeProto, what: str) -> NDArray[Any]:
        """The value of an input that must be a constant; `what` names it to the reader of a refusal."""
        found = self.value(name)
        if found is None:
            raise untrainable(node, f"its {what} must be constant")
        return found

    def integers(self, name: str, node: onnx.NodeProto, what: str) -> list[int]:
        """The same for a vector of whole numbers."""
        return [int(number) for number in self.known(name, node, what).reshape(-1)]

    def kind(self, name: str) -> int:
        """Element type of a tensor of the forward graph."""
        return self._info.kinds.get(name, TensorProto.FLOAT)

    def wants(self, node: onnx.NodeProto, place: int) -> bool:
        """Whether a gradient goes to this input."""
        return place < len(node.input) and node.input[place] in self.active

    # ---- rows ---------------------------------------------------------------------------------

    @property
    def row_sum(self) -> str:
        """Scalar: the sum of the weights of the rows."""
        return self._once("sum", "", lambda: self.add("ReduceSum", [self.row_weights], keepdims=0))

    @property
    def row_shares(self) -> str:
        """Tensor `(batch, 1)`: the share of each row in the batch; the shares add up to 1."""
        return self._once("shares", "", lambda: self.add("Div", [self.row_weights, self.row_sum]))

    def beside(self, rows: str, rank: int) -> str:
        """Reshape a tensor `(batch, 1)` so that it broadcasts to tensors `(batch, ...)` of this rank."""
        if rank == 2:
            return rows
        ones = [1] * (rank - 1)
        return self._once(rows, str(rank), lambda: self.add("Reshape", [rows, self.sizes(-1, *ones)]))

    def noise(self, elements: int) -> str:
        """A tensor `(batch, elements)` of uniform random numbers in [0, 1), new ones in every step."""
        start, self.noise_width = self.noise_width, self.noise_width + elements
        bounds = self.sizes(start), self.sizes(self.noise_width)
        return self.add("Slice", [NOISE, *bounds, self.sizes(1)])

    def remember(self, parameter: str, new: str) -> None:
        """Let a frozen parameter take the value of tensor `new` when the step is accepted."""
        self.remembered[parameter] = new

    # ---- shapes and adjoints ------------------------------------------------------------------

    def shape_of(self, name: str, node: onnx.NodeProto) -> str:
        """The shape of a tensor as a tensor: a constant if it is one, else taken at run time."""
        dims = self.dims(name, node)
        sizes = [size for size in dims if isinstance(size, int)]
        if len(sizes) == len(dims):
            return self.sizes(*sizes)
        return self._once("shape", name, lambda: self.add("Shape", [name]))

    def like(self, tensor: str, name: str, node: onnx.NodeProto) -> str:
        """Reshape `tensor` to the shape of tensor `name` of the forward graph."""
        dims = self.dims(name, node)
        if sum(isinstance(size, str) for size in dims) > 1 or 0 in dims:
            return self.add("Reshape", [tensor, self.shape_of(name, node)])
        return self.add("Reshape", [tensor, self.sizes(*(-1 if isinstance(s, str) else s for s in dims))])

    def full(self, gradient: Adjoint, name: str, node: onnx.NodeProto) -> str:
        """The adjoint of tensor `name` as a tensor of its own shape."""
        if gradient.dims == self.dims(name, node):
            return gradient.name
        return self.add("Expand", [gradient.name, self.shape_of(name, node)])

    def whole(self, gradient: Adjoint, node: onnx.NodeProto) -> str:
        """The adjoint of the output of a node as a tensor of the output's own shape."""
        return self.full(gradient, node.output[0], node)

    def zeros(self, name: str, node: onnx.NodeProto) -> str:
        """Zeros of the shape of tensor `name`."""
        zero = numpy_helper.from_array(np.zeros(1, np.float32))
        return self.add("ConstantOfShape", [self.shape_of(name, node)], value=zero)

    def count(self, name: str, axes: Sequence[int], node: onnx.NodeProto) -> str:
        """Scalar float32: how many elements tensor `name` has along these axes."""
        dims = self.dims(name, node)
        fixed = [dims[axis] for axis in axes if isinstance(dims[axis], int)]
        product = math.prod(size for size in fixed if isinstance(size, int))
        if len(fixed) == len(axes):
            return self.number(product)
        sizes = self.add("Gather", [self.shape_of(name, node), self.sizes(*axes)])
        return self.add("Cast", [self.add("ReduceProd", [sizes], keepdims=0)], to=TensorProto.FLOAT)

    def summed(self, gradient: Adjoint, result: str, operand: str, node: onnx.NodeProto) -> Adjoint:
        """Sum a gradient of the shape of `result` over the axes along which `operand` was repeated."""
        whole, own = self.dims(result, node), self.dims(operand, node)
        lead = len(whole) - len(own)
        repeated = [i for i, size in enumerate(whole) if size != 1 and (i < lead or own[i - lead] == 1)]
        axes = [i for i in repeated if gradient.dims[i] != 1]
        name, dims = gradient.name, list(gradient.dims)
        for i in axes:
            dims[i] = 1
        if axes and axes == list(range(lead)):
            name = self.add("ReduceSum", [name, self.sizes(*axes)], keepdims=0)
        else:
            if axes:
                name = self.add("ReduceSum", [name, self.sizes(*axes)], keepdims=1)
            if lead:
                name = self.add("Squeeze", [name, self.sizes(*range(lead))])
        alike = [i for i in repeated if i not in axes]
        if alike:
            name = self.add("Mul", [name, self.count(result, alike, node)])
        return Adjoint(name, tuple(dims[lead:]))

    def times(self, gradient: Adjoint, factor: str, dims: Dims) -> Adjoint:
        """The adjoint times a tensor with these sizes."""
        return Adjoint(self.add("Mul", [gradient.name, factor]), broadcast(gradient.dims, dims))

    def scaled(self, gradient: Adjoint, factor: float) -> Adjoint:
        """The adjoint times a number."""
        if factor == 1:
            return gradient
        return replace(gradient, name=self.add("Mul", [gradient.name, self.number(factor)]))

    def along(self, matrix: NDArray[np.float32], tensor: str, axis: int, rank: int) -> str:
        """The product of a constant matrix with one axis of a tensor of this rank, 2 or more."""
        order = [i for i in range(rank) if i != axis]
        order.insert(rank - 2, axis)
        turned = order != list(range(rank))
        moved = self.add("Transpose", [tensor], perm=order) if turned else tensor
        made = self.add("MatMul", [self.constant(matrix), moved])
        return self.add("Transpose", [made], perm=[int(i) for i in np.argsort(order)]) if turned else made

    def _once(self, kind: str, name: str, write: Any) -> str:
        if (kind, name) not in self._cache:
            self._cache[kind, name] = write()
        return self._cache[kind, name]


def broadcast(*shapes: Dims) -> Dims:
    """Sizes of the result of an operation element by element.

    >>> broadcast(("batch", 1), (3,))
    ('batch', 3)
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


# ---- which rule an operator has ----------------------------------------------------------------

Forward = Callable[[onnx.NodeProto, Tape], None]
"""Writes a node in another way, or keeps what its gradient needs (`Tape.saved`); without one it is copied."""

Backward = Callable[[onnx.NodeProto, Sequence[Any], Tape], Adjoints]
"""The vector-Jacobian product: takes the adjoints of the node's outputs, returns those of its inputs.

None stands for an output that nothing reads, and for an input that no gradient goes to. A rule whose operator
has one output does not expect None.
"""


FORWARD: dict[str, Forward] = {}
BACKWARD: dict[str, Backward] = {}
# Inputs that take no gradient although they are numbers, by their places: bounds, ratios, running statistics.
STOPS = {
    "BatchNormalization": (3, 4),
    "Dropout": (1, 2),
    "OneHot": (0, 1, 2),
    "Resize": (1, 2, 3),
}
# Operators whose derivative is zero wherever there is one.
ZERO = frozenset({
    "And", "ArgMax", "ArgMin", "Ceil", "Constant", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "OneHot", "Or",
    "Round", "Shape", "Sign", "Size", "Xor",
})  # fmt: skip

Written = TypeVar("Written", bound=Forward)
Derived = TypeVar("Derived", bound=Backward)


def forward(*operators: str) -> Callable[[Written], Written]:
    """Register a function as the forward rule of these operators."""

    def register(rule: Written) -> Written:
        FORWARD.update(dict.fromkeys(operators, rule))
        return rule

    return register


def backward(*operators: str) -> Callable[[Derived], Derived]:
    """Register a function as the backward rule of these operators."""

    def register(rule: Derived) -> Derived:
        BACKWARD.update(dict.fromkeys(operators, rule))
        return rule

    return register
