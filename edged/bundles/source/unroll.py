"""Loops of a fixed length and settled choices, written out into plain nodes.

Exporters write recurrent layers of their own as a Loop or Scan. Written out, every round reads the same
parameters, so that their gradients add up. Sequences of tensors, which loops collect, become the tensors.
Definitions as in the ONNX operator specification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edged.bundles.autodiff.shapes import WHOLE
from edged.bundles.graph.edit import needed_nodes, reads, rename_inputs, shortened
from edged.bundles.graph.writer import attributes_of
from edged.bundles.source.initialisers import is_zero
from edged.bundles.source.known import Informed, folded
from edged.errors import BundleError

# Nodes that loops may be written out into: with their gradient a session takes seconds to load.
MOST = 4_000
_LOOPS = ("If", "Loop", "Scan")
_MADE = ("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SplitToSequence")
_READ = ("ConcatFromSequence", "SequenceAt", "SequenceLength")


class _NotFixedError(Exception):
    """The number of rounds depends on what is computed."""


def unroll(model: onnx.ModelProto, add_note: Callable[[str], None]) -> set[str]:
    """Write out every Loop and Scan of fixed length and every If with a constant condition, in place.

    The others stay: a gradient that must pass one of them is refused. The names of the initialisers that
    written out nodes read are returned: all rounds share them.

    Raises BundleError when a loop would become more than `MOST` nodes, naming it.
    """
    graph, shared, unrolled = model.graph, set[str](), list[str]()
    while any(node.op_type in (*_LOOPS, *_MADE, *_READ) for node in graph.node):
        work = _Unroller(model)
        for node in graph.node:
            work.write_whole(node)
        if not work.done:
            break
        for node in work.done:
            shared |= reads(node)
            unrolled += [node.name] if node.op_type in _LOOPS else []
        work.put_into(graph)
        shared |= work.raised
    if unrolled:
        add_note(f"loops and choices written out: {shortened(unrolled)}")
    return shared.intersection(tensor.name for tensor in graph.initializer)


class _Unroller(Informed):
    """Writes the nodes of a graph once, with those that repeat or choose others written out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.done: list[onnx.NodeProto] = []
        """Nodes that were written out."""
        self.raised: set[str] = set()
        """Initialisers that came out of bodies."""
        self._top = onnx.NodeProto()
        self._front: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._lists: dict[str, list[str]] = {}
        self._parts: dict[tuple[str, int], list[str]] = {}
        self._begun: set[str] = set()
        self._held: dict[bytes, str] = {}
        self._counts = Counter[str]()

    def put_into(self, graph: onnx.GraphProto) -> None:
        """Replace the nodes of the graph, without those that nothing reads."""
        nodes = needed_nodes([*self._front, *self.nodes], (value.name for value in graph.output))
        read = {value.name for value in graph.output}.union(*map(reads, nodes))
        # A state that begins at zero is none that is trained.
        zeros = {t.name: t for t in graph.initializer if t.name in self._begun and is_zero(t)}
        begun = [helper.make_node("Constant", [], [name], name=name, value=t) for name, t in zeros.items()]
        kept = [t for t in graph.initializer if t.name not in zeros]
        added = [t for t in (*self._tensors.values(), *self.constants) if t.name in read]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend([*reversed(begun), *nodes])
        graph.initializer.extend([*kept, *added])

    def write_whole(self, node: onnx.NodeProto) -> None:
        """Write a node of the graph itself; what stands for its outputs gets their names."""
        before, parts, self._top = len(self.nodes), dict(self._parts), node
        try:
            results = self._results(node)
        except _NotFixedError:
            del self.nodes[before:]
            results, self._parts = None, parts
        if results is None:
            self.copy(node)
            return
        self.done.append(node)
        for result, name in zip(results, node.output, strict=False):
            if result in self._lists:
                self._lists[name] = self._lists[result]
            elif name:
                self.add("Identity", [result], name)

    def _results(self, node: onnx.NodeProto) -> list[str] | None:
        """The tensors that stand for the outputs of a node; None where it is to stay as it is."""
        rule = _RULES.get(node.op_type)
        return rule(self, node) if rule is not None and node.domain in ("", "ai.onnx") else None

    # ---- bodies -------------------------------------------------------------------------------

    def _round(self, body: onnx.GraphProto, given: Iterable[str]) -> list[str]:
        """Write the nodes of a body once; the names of its outputs."""
        scope = dict(zip((value.name for value in body.input), given, strict=True))
        scope |= {tensor.name: self._raised(tensor) for tensor in body.initializer}
        for node in body.node:
            made = onnx.NodeProto()
            made.CopyFrom(node)
            rename_inputs(made, scope)
            scope.update(zip(node.output, self._inside(made), strict=False))
        if len(self.nodes) > MOST:
            raise BundleError(
                f"operator {self._top.op_type} would become more than {MOST} nodes when it is written out",
                where=f"node {self._top.name}",
                remedy="export the layer as LSTM, GRU or RNN, or with a shorter sequence",
            )
        return [scope.get(value.name, str(value.name)) for value in body.output]

    def _inside(self, node: onnx.NodeProto) -> list[str]:
        if node.op_type == "Identity":
            return [node.input[0]]
        values = folded(node, self.numbers, self.opset)
        if values is not None:
            return [self._number(value) for value in values]
        if node.op_type == "Constant":
            return [self._constant_of(node)]
        results = self._results(node)
        if results is not None:
            return results
        for i, name in enumerate(node.output):
            node.output[i] = self._fresh(name) if name else ""
        node.name = self._fresh(node.name or node.op_type)
        self.copy(node)
        return list(node.output)

    def _fresh(self, name: str) -> str:
        while (made := f"{name}.{self._counts[name]}") in self._taken:
            self._counts[name] += 1
        self._taken.add(made)
        return made

    def _number(self, value: Any) -> str:
        name = self.constant(value)
        self.numbers[name] = np.asarray(value)
        return name

    def _raised(self, tensor: onnx.TensorProto) -> str:
        """An initialiser of a body as one of the graph, the same one in every round."""
        key = tensor.SerializeToString()
        if key not in self._held:
            made = onnx.TensorProto()
            made.CopyFrom(tensor)
            made.name = self._fresh(tensor.name)
            self._held[key] = made.name
            self._tensors[made.name] = made
            self.raised.add(made.name)
            if tensor.data_type in WHOLE:
                self.numbers[made.name] = numpy_helper.to_array(tensor)
        return self._held[key]

    def _constant_of(self, node: onnx.NodeProto) -> str:
        """A Constant of a body in front of everything, the same one in every round."""
        key = b"".join(item.SerializeToString() for item in node.attribute)
        if key not in self._held:
            self._held[key] = node.output[0] = node.name = self._fresh(node.output[0])
            self._front.append(node)
        return self._held[key]

    # ---- control flow -------------------------------------------------------------------------

    def choice(self, node: onnx.NodeProto) -> list[str] | None:
        """The branch that a constant condition chooses."""
        condition = self.value(node.input[0])
        if condition is None:
            return None
        return self._round(attributes_of(node)["then_branch" if condition.all() else "else_branch"], [])

    def loop(self, node: onnx.NodeProto) -> list[str] | None:
        """The rounds of a Loop whose count is known, or whose condition is in every round."""
        most, go = (self.value(name) if name else np.True_ for name in [*node.input, "", ""][:2])
        if most is None or go is None:
            return None
        body, states = attributes_of(node)["body"], list(node.input[2:])
        first, rows = list(states), list[list[str]]()
        while np.all(go) and (not node.input[0] or len(rows) < int(most.item())):
            turn = [self._number(np.int64(len(rows))), self._number(np.True_)]
            condition, *outputs = self._round(body, [*turn, *states])
            go = self.value(condition)
            if go is None:
                raise _NotFixedError
            states = outputs[: len(states)]
            rows.append(outputs[len(states) :])
        if not rows and len(node.output) > len(states):
            return None
        self._has_begun(first, states)
        return [*states, *(self._stacked(list(each), 0) for each in zip(*rows, strict=True))]

    def scan(self, node: onnx.NodeProto) -> list[str] | None:
        """The rounds of a Scan along sequences of known length, in either direction."""
        given = attributes_of(node)
        count, body = given["num_scan_inputs"], given["body"]
        states, sequences = list(node.input[:-count]), node.input[-count:]
        results = len(body.output) - len(states)
        axes, back = (
            given.get("scan_input_axes", [0] * count),
            given.get("scan_input_directions", [0] * count),
        )
        parts = [self._split(name, axis) for name, axis in zip(sequences, axes, strict=True)]
        if self.opset < 9 or None in parts:
            return None
        turned = [part[::-1] if turn else part for part, turn in zip(parts, back, strict=True) if part]
        first, rows = list(states), list[list[str]]()
        for rounds in zip(*turned, strict=True):
            now = [self._shaped("Squeeze", part, axis) for part, axis in zip(rounds, axes, strict=True)]
            outputs = self._round(body, [*states, *now])
            states = outputs[: len(states)]
            rows.append(outputs[len(states) :])
        self._has_begun(first, states)
        axes = given.get("scan_output_axes", [0] * results)
        back = given.get("scan_output_directions", [0] * results)
        each = [
            list(column)[:: -1 if turn else 1]
            for column, turn in zip(zip(*rows, strict=True), back, strict=True)
        ]
        return [*states, *map(self._stacked, each, axes)]

    def _has_begun(self, first: list[str], last: list[str]) -> None:
        self._begun |= {one for one, other in zip(first, last, strict=True) if one != other}

    # ---- parts of tensors ---------------------------------------------------------------------

    def picked(self, node: onnx.NodeProto) -> list[str] | None:
        """One place of an axis, as each round of a loop takes another: a part of one Split.

        A gradient of many single places would be as many tensors of the whole size.
        """
        place, axis = self.value(node.input[1]), attributes_of(node).get("axis", 0)
        if self._top is node or place is None or place.size != 1 or place.ndim > 1:
            return None
        parts = self._split(node.input[0], axis)
        if parts is None or not -len(parts) <= place.item() < len(parts):
            return None
        part = parts[place.item()]
        return [part if place.ndim else self._shaped("Squeeze", part, axis)]

    def _split(self, tensor: str, axis: int) -> list[str] | None:
        """The places along an axis, each a tensor; None where it is not known how many there are."""
        shape = self._shapes.get(tensor, ())
        length = shape[axis] if -len(shape) <= axis < len(shape) else None
        if not length:
            return None
        axis %= len(shape)
        if (tensor, axis) not in self._parts:
            names, ones = [self.name("part") for _ in range(length)], [1] * length
            if self.opset < 13:
                self.operator("Split", [tensor], names, axis=axis, split=ones)
            else:
                self.operator("Split", [tensor, self.sizes(*ones)], names, axis=axis)
            self._parts[tensor, axis] = names
        return self._parts[tensor, axis]

    def _shaped(self, operator: str, tensor: str, axis: int) -> str:
        """A Squeeze or Unsqueeze of one axis."""
        if self.opset < 13:
            return self.add(operator, [tensor], axes=[axis])
        return self.add(operator, [tensor, self.sizes(axis)])

    def _stacked(self, parts: list[str], axis: int) -> str:
        return self.add("Concat", [self._shaped("Unsqueeze", part, axis) for part in parts], axis=axis)

    # ---- sequences of tensors -----------------------------------------------------------------

    def sequence(self, node: onnx.NodeProto) -> list[str] | None:
        """A new sequence, as the list of its tensors."""
        given, kind, made = attributes_of(node), node.op_type, list[str]()
        if kind == "SequenceConstruct":
            made = list(node.input)
        elif kind == "SplitToSequence":
            axis = given.get("axis", 0)
            made = self._split(node.input[0], axis) or [] if len(node.input) == 1 else []
            if not given.get("keepdims", 1):
                made = [self._shaped("Squeeze", part, axis) for part in made]
        elif kind == "SequenceInsert":
            found, place = self._found(node, 2)
            if found is None or place is None:
                return None
            made = [*found[:place], node.input[1], *found[place:]]
        if not made and kind != "SequenceEmpty":
            return None
        name = self.name("sequence")
        self._lists[name] = made
        return [name]

    def of_sequence(self, node: onnx.NodeProto) -> list[str] | None:
        """A tensor made of a known sequence."""
        given = attributes_of(node)
        found, place = self._found(node, 1)
        if not found or place is None:
            return None
        if node.op_type == "SequenceLength":
            return [self._number(np.int64(len(found)))]
        if node.op_type == "SequenceAt":
            return [found[place]]
        return [(self._stacked if given.get("new_axis", 0) else self._joined)(found, given["axis"])]

    def _found(self, node: onnx.NodeProto, at: int) -> tuple[list[str] | None, int | None]:
        """The tensors of the sequence that a node reads, and a place in it: its end where none is given."""
        found = self._lists.get(node.input[0])
        if len(node.input) <= at:
            return found, len(found or [])
        place = self.value(node.input[at])
        return found, None if place is None else int(place.item())

    def _joined(self, parts: list[str], axis: int) -> str:
        return self.add("Concat", parts, axis=axis)


_RULES: dict[str, Callable[[_Unroller, onnx.NodeProto], list[str] | None]] = {
    "Gather": _Unroller.picked,
    "If": _Unroller.choice,
    "Loop": _Unroller.loop,
    "Scan": _Unroller.scan,
    **dict.fromkeys(_MADE, _Unroller.sequence),
    **dict.fromkeys(_READ, _Unroller.of_sequence),
}
