"""Loops over a sequence and choices between two forms: ONNX's Scan and If."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onnx import TensorProto, helper

from edged.bundles.graph.writer import NodeWriter

if TYPE_CHECKING:
    import onnx

    from edged.bundles.graph.writer import Writer


class ScanState(NamedTuple):
    """A tensor that goes from round to round: its first value, its name before and after a round."""

    first: str
    before: str
    after: str


class Body(NodeWriter):
    """The nodes of a graph inside the graph; they may read tensors of the one around them."""

    def __init__(self, to: Writer) -> None:
        super().__init__()
        self._to = to

    def body(self) -> Body:
        """Return a nested body for a graph inside this one."""
        return Body(self._to)

    def name(self, hint: str) -> str:
        """A name that nothing in the whole graph has."""
        return self._to.name(hint)

    def number(self, value: float) -> str:
        """Add a float32 scalar and return its name."""
        return self._to.number(value)

    def sizes(self, *values: int) -> str:
        """Add an int64 vector and return its name."""
        return self._to.sizes(*values)

    def constant(self, value: Any) -> str:
        """Add a constant tensor and return its name."""
        return self._to.constant(value)

    def split(self, tensor: str, *lengths: int, axis: int = -1) -> list[str]:
        """Parts of these lengths along an axis."""
        names = [self.name("part") for _ in lengths]
        self.operator("Split", [tensor, self.sizes(*lengths)], names, axis=axis)
        return names

    def graph(
        self, inputs: Sequence[str], outputs: Sequence[str], shape: Sequence[None] | None = None
    ) -> onnx.GraphProto:
        """The nodes as a graph; all that goes in and out is float32, and of this shape if one is given."""
        takes, gives = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
            for names in (inputs, outputs)
        )
        return helper.make_graph(self.nodes, self.name("body"), takes, gives)


def write_scan(
    body: Body,
    to: Writer | Body,
    *,
    states: Sequence[ScanState],
    sequences: Mapping[str, str],
    collected: Mapping[str, str],
    backwards: bool = False,
) -> list[str]:
    """Write a Scan over matrices along the first axis; the names of the states after the last round.

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
    last = [body.name("last") for _ in states]
    takes = [*(state.before for state in states), *sequences]
    gives = [*(state.after for state in states), *collected]
    to.nodes.append(
        helper.make_node(
            "Scan",
            [*(state.first for state in states), *sequences.values()],
            [*last, *collected.values()],
            name=last[0],
            # The runtime must know how many axes there are, and cannot always tell by itself.
            body=body.graph(takes, gives, [None, None]),
            num_scan_inputs=len(sequences),
            scan_input_directions=[int(backwards)] * len(sequences),
            scan_output_directions=[int(backwards)] * len(collected) or None,
        )
    )
    return last


def write_choice(
    condition: str,
    forms: tuple[Body, Body],
    results: tuple[list[str], list[str]],
    outputs: list[str],
    to: Writer | Body,
) -> None:
    """Write an If: the outputs are the first form's results where the condition holds, else the second's."""
    yes, no = (form.graph([], result) for form, result in zip(forms, results, strict=True))
    to.nodes.append(
        helper.make_node("If", [condition], outputs, name=outputs[0], then_branch=yes, else_branch=no)
    )
