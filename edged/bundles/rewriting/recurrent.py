"""Recurrent layers: directions apart, initial states written out for the gradient, zeros left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from edged.bundles.graph.edit import consumed
from edged.bundles.graph.external_data import is_elsewhere
from edged.bundles.graph.writer import attributes_of, untrainable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter

# Places of the initial states among the inputs.
_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
_SAME = {"clip": 0, "layout": 0, "input_forget": 0}
_PLAIN: Mapping[str, Mapping[str, Any]] = {
    "GRU": {**_SAME, "activations": [b"Sigmoid", b"Tanh"]},
    "LSTM": {**_SAME, "activations": [b"Sigmoid", b"Tanh", b"Tanh"]},
}
# For every direction of a layer whether it goes back.
_TURNS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# What keeps zeros zeros, whatever shape it gives them.
_SHAPING = ("Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")


def plain_layers(node: onnx.NodeProto, to: Rewriter) -> None:
    """As one layer that goes forward for every direction, each with its initial states written out.

    The training build has no gradient for other directions: going back is going forward over the sequence
    turned round, and the weights of two directions lie one behind the other. An initial state that is left
    out is zero, but the gradient's kernel takes what comes after it for the state itself.
    """
    if reason := more_than_plain(node):
        raise untrainable(node, reason)
    turns = _TURNS[direction_of(node)]
    outputs = [
        _layer(node, parts, to, turned=turned)
        for parts, turned in zip(_apart(node, len(turns), to), turns, strict=True)
    ]
    for name, values, axis in zip(node.output, zip(*outputs, strict=True), (1, 0, 0), strict=False):
        if name and len(turns) == 1:
            to.add("Identity", [values[0]], name)
        elif name:
            to.add("Concat", list(values), name, axis=axis)


def direction_of(node: onnx.NodeProto) -> str:
    """The direction of a recurrent node: forward, reverse or bidirectional."""
    return str(attributes_of(node).get("direction", "forward"))


def going_back(node: onnx.NodeProto) -> str:
    """The direction of an LSTM or GRU that does not go forward alone; nothing for all other nodes."""
    direction = direction_of(node) if node.op_type in _PLAIN else "forward"
    return "" if direction == "forward" else f"its direction is {direction}"


def _apart(node: onnx.NodeProto, directions: int, to: Rewriter) -> list[list[str]]:
    """The inputs behind x, a list for each direction; empty names for those that are left out."""
    given = [*node.input, *[""] * (_STATES[node.op_type][-1] + 1 - len(node.input))][1:]
    if directions == 1:
        return [given]
    parts = [
        [to.name("direction") for _ in range(directions)] if name else [""] * directions for name in given
    ]
    for name, names in zip(given, parts, strict=True):
        if name:
            to.operator("Split", [name], names, axis=0)
    return [list(each) for each in zip(*parts, strict=True)]


def _layer(node: onnx.NodeProto, parts: list[str], to: Rewriter, *, turned: bool) -> list[str]:
    """One direction; the names of all its outputs."""
    x, outputs = str(node.input[0]), [to.name("layer") for _ in _STATES[node.op_type]]
    states = to.name("layer")
    first = [parts[place - 1] or _zeros(node, to) for place in _STATES[node.op_type]]
    inputs = [_turned(x, node, to) if turned else x, *parts[:3], "", *first]
    made = helper.make_node(node.op_type, inputs, [states, *outputs], name=to.name(node.name))
    made.attribute.extend(item for item in node.attribute if item.name not in ("direction", "activations"))
    to.copy(made)
    return [_turned(states, node, to) if turned else states, *outputs]


def _turned(sequence: str, node: onnx.NodeProto, to: Rewriter) -> str:
    length = to.shape(node.input[0], node)[0]
    if length is None:
        raise untrainable(node, "it goes back over a sequence of varying length")
    return to.add("Gather", [sequence, to.sizes(*reversed(range(length)))], axis=0)


def more_than_plain(node: onnx.NodeProto) -> str:
    """What makes an LSTM or GRU more than a plain layer; nothing for all other nodes.

    The native engine cannot run such a layer in training, and has a wrong gradient for peepholes.
    """
    if node.op_type not in _PLAIN:
        return ""
    given, inputs = attributes_of(node), [*node.input, *[""] * 8]
    for name, plain in _PLAIN[node.op_type].items():
        wanted = plain * len(_TURNS[direction_of(node)]) if isinstance(plain, list) else plain
        value = given.get(name, wanted)
        if value != wanted:
            return f"its {name} is {_written(value)}"
    return next((f"it has the input {name}" for i, name in ((4, "sequence_lens"), (7, "P")) if inputs[i]), "")


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(item.decode() for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _zeros(node: onnx.NodeProto, to: Rewriter) -> str:
    hidden = attributes_of(node)["hidden_size"]
    batch = to.add("Slice", [to.add("Shape", [node.input[0]]), to.sizes(1), to.sizes(2)])
    shape = to.add("Concat", [to.sizes(1), batch, to.sizes(hidden)], axis=0)
    return to.add("ConstantOfShape", [shape], value=numpy_helper.from_array(np.zeros(1, np.float32)))


def without_zero_states(graph: onnx.GraphProto) -> None:
    """Leave out initial states that are written in the model as zeros, which they are anyway.

    Exporters write them with the batch size of the export, and as weights.
    """
    zeros = _zero_tensors(graph)
    for node in graph.node:
        for place in _STATES.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] in zeros:
                node.input[place] = ""
    _drop_unread(graph, zeros)


def _zero_tensors(graph: onnx.GraphProto) -> set[str]:
    found = {str(item.name) for item in graph.initializer if _is_zero(item)}
    for node in graph.node:
        given = attributes_of(node)
        tensor = given.get("value")
        if node.op_type in ("Constant", "ConstantOfShape"):
            zero = tensor is not None and _is_zero(tensor)
            zero |= node.op_type == "ConstantOfShape" and tensor is None
        else:
            zero = node.op_type in _SHAPING and node.input[0] in found
        if zero:
            found.add(str(node.output[0]))
    return found


def _is_zero(tensor: onnx.TensorProto) -> bool:
    return not is_elsewhere(tensor) and not numpy_helper.to_array(tensor).any()


def _drop_unread(graph: onnx.GraphProto, names: set[str]) -> None:
    """Nodes that make zeros for nobody."""
    for node in reversed(list(graph.node)):
        if node.output[0] in names - consumed(graph) - {value.name for value in graph.output}:
            graph.node.remove(node)


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "GRU": plain_layers,
    "LSTM": plain_layers,
}
