"""Writing nodes: those that take the place of an operator, bodies of Scan and If, whole networks."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from typing_extensions import Self

from edged.errors import BundleError


class NodeWriter:
    """Collects standard nodes in the order in which they are written, and the constants they read.

    `taken` are names that must not be used again, `values` the constants of the graph that is written
    (indices, axes and the like). New names begin with `prefix`.
    """

    def __init__(
        self,
        taken: Iterable[str] = (),
        values: Mapping[str, NDArray[Any]] | None = None,
        *,
        prefix: str = "step",
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._values = values or {}
        self._taken, self._prefix = set(taken), prefix

    def fork(self) -> Self:
        """Return a copy of this writer, to which nodes can be added independently."""
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | dict | set):
                setattr(made, name, value.copy())
        return made

    def body(self) -> NodeWriter:
        """A writer for a graph inside this one, which shares its names and constants.

        Its nodes may read tensors of the graph around them.
        """
        inner = NodeWriter((), self._values, prefix=self._prefix)
        inner.constants, inner._constants, inner._taken = self.constants, self._constants, self._taken
        return inner

    def add(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Write one standard node; the name of its first output, which is a new one unless given."""
        name = output or self.name(operator.lower())
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def operator(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Write one standard node with several outputs."""
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], **attributes))

    def split(self, tensor: str, *lengths: int, axis: int = -1) -> list[str]:
        """Write a Split into parts of these lengths along an axis; their names."""
        names = [self.name("part") for _ in lengths]
        self.operator("Split", [tensor, self.sizes(*lengths)], names, axis=axis)
        return names

    def copy(self, node: onnx.NodeProto) -> None:
        """Take a node over as it is."""
        self.nodes.append(node)

    def name(self, hint: str) -> str:
        """A name that nothing in the whole graph has."""
        number = len(self._taken)
        while f"{self._prefix}.{hint}.{number}" in self._taken:
            number += 1
        self._taken.add(f"{self._prefix}.{hint}.{number}")
        return f"{self._prefix}.{hint}.{number}"

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


def constant_node(name: str, value: NDArray[Any]) -> onnx.NodeProto:
    """A Constant node: unlike an initialiser, nothing takes its value for a parameter."""
    return helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(value, name))


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


# ---- loops over a sequence, and choices between two forms --------------------------------------


class ScanState(NamedTuple):
    """A tensor that goes from round to round: its first value, its names in a round, its last value."""

    first: str
    before: str
    after: str
    last: str


def write_scan(
    body: NodeWriter,
    to: NodeWriter,
    *,
    states: Sequence[ScanState],
    sequences: Mapping[str, str],
    collected: Mapping[str, str],
    backwards: bool = False,
) -> None:
    """Write a Scan over matrices along the first axis.

    Parameters
    ----------
    body
        What one round does.
    to
        Where the Scan goes.
    states
        What goes from round to round.
    sequences
        For names in the body, the tensors `(length, rows, width)` that give them their value in each round.
    collected
        For names in the body, the tensors `(length, rows, width)` that hold their values of all rounds.
    backwards
        Go from the last to the first; what is collected lies in the order of the sequences all the same.
    """
    takes = [*(state.before for state in states), *sequences]
    gives = [*(state.after for state in states), *collected]
    to.operator(
        "Scan",
        [*(state.first for state in states), *sequences.values()],
        [*(state.last for state in states), *collected.values()],
        # The runtime must know how many axes there are, and cannot always tell by itself.
        body=_graph(body, takes, gives, [None, None]),
        num_scan_inputs=len(sequences),
        scan_input_directions=[int(backwards)] * len(sequences),
        scan_output_directions=[int(backwards)] * len(collected) or None,
    )


def write_choice(
    condition: str,
    forms: tuple[NodeWriter, NodeWriter],
    results: tuple[list[str], list[str]],
    outputs: list[str],
    to: NodeWriter,
) -> None:
    """Write an If: the outputs are the first form's results where the condition holds, else the second's."""
    yes, no = (_graph(form, [], result) for form, result in zip(forms, results, strict=True))
    to.operator("If", [condition], outputs, then_branch=yes, else_branch=no)


def _graph(
    body: NodeWriter, inputs: Sequence[str], outputs: Sequence[str], shape: Sequence[None] | None = None
) -> onnx.GraphProto:
    """The nodes as a graph; all that goes in and out is float32, and of this shape if one is given."""
    takes, gives = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
        for names in (inputs, outputs)
    )
    return helper.make_graph(body.nodes, body.name("body"), takes, gives)
