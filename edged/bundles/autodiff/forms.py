"""Forms of operators that are brought to others before differentiation, with the same values.

Recurrent layers become one layer that goes forward for each direction, and activations before a maximum
pooling come behind it.
"""

from __future__ import annotations

import onnx
from onnx import helper

from edged.bundles.autodiff.rules.recurrent import STATES, further_input
from edged.bundles.graph.edit import all_names
from edged.bundles.graph.writer import NodeWriter, attributes_of

# Activations that never fall, so that the largest input has the largest output.
_RISING = ("Relu", "LeakyRelu", "Sigmoid", "Tanh")
# For every direction of a layer whether it goes back.
_TURNS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_FIRST, _LAST, _BACK = 0, -(2**31), -1

Readers = dict[str, list[onnx.NodeProto]]


def plain_forms(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model in the forms that the rules take."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    to = NodeWriter(all_names(graph))
    for node in _pooled_first(list(graph.node)):
        if node.op_type in STATES and node.domain in ("", "ai.onnx"):
            _plain_layers(node, to)
        else:
            to.copy(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in to.nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(to.constants)
    return made


# ---- recurrent layers -------------------------------------------------------------------------


def _plain_layers(node: onnx.NodeProto, to: NodeWriter) -> None:
    """A layer for each direction, the batch behind the time; one that goes back reads the sequence turned."""
    given = attributes_of(node)
    turns = _TURNS[given.get("direction", "forward")]
    plain = turns == (False,) and not given.get("layout", 0)
    if plain or further_input(node):
        to.copy(node)
        return
    inputs = [*node.input, *[""] * 7][: 5 + STATES[node.op_type]]
    if given.get("layout", 0):
        inputs = [
            to.add("Transpose", [name], perm=[1, 0, 2]) if name and place in (0, 5, 6) else name
            for place, name in enumerate(inputs)
        ]
    parts = _by_direction(inputs, len(turns), to)
    made = [
        _layer(node, [inputs[0], *part], number, to, turned=turned)
        for number, (part, turned) in enumerate(zip(parts, turns, strict=True))
    ]
    for name, values, axis in zip(node.output, zip(*made, strict=True), (1, 0, 0), strict=False):
        if name:
            _joined(list(values), axis, name, bool(given.get("layout", 0)), to)


def _joined(values: list[str], axis: int, output: str, batch_first: bool, to: NodeWriter) -> None:
    name = values[0]
    if len(values) > 1:
        name = to.add("Concat", values, "" if batch_first else output, axis=axis)
    if batch_first:
        to.add("Transpose", [name], output, perm=[2, 0, 1, 3] if axis else [1, 0, 2])
    elif len(values) == 1:
        to.add("Identity", [name], output)
    # The layer itself may be named after its output.
    to.nodes[-1].name = f"{output}.joined"


def _by_direction(inputs: list[str], directions: int, to: NodeWriter) -> list[list[str]]:
    """The inputs behind x, a list for each direction; empty names for those that are left out."""
    if directions == 1:
        return [inputs[1:]]
    parts = []
    for name in inputs[1:]:
        names = [to.name("direction") if name else "" for _ in range(directions)]
        if name:
            to.operator("Split", [name], names, axis=0, num_outputs=directions)
        parts.append(names)
    return [list(each) for each in zip(*parts, strict=True)]


def _layer(
    node: onnx.NodeProto, inputs: list[str], number: int, to: NodeWriter, *, turned: bool
) -> list[str]:
    """One direction; the names of all its outputs."""
    outputs = [to.name("layer") for _ in range(1 + STATES[node.op_type])]
    given = attributes_of(node)
    each = len(given.get("activations", [])) // len(_TURNS[given.get("direction", "forward")])
    if each:
        given["activations"] = given["activations"][number * each : (number + 1) * each]
    for name in ("direction", "layout"):
        given.pop(name, None)
    # The first one keeps the name, by which a reader knows the node.
    name = f"{node.name}.{number}" if number else node.name
    read = _turned(inputs[0], to) if turned else inputs[0]
    made = helper.make_node(node.op_type, [read, *inputs[1:]], outputs, name=name, **given)
    to.copy(made)
    return [_turned(outputs[0], to) if turned else outputs[0], *outputs[1:]]


def _turned(sequence: str, to: NodeWriter) -> str:
    bounds = [to.sizes(number) for number in (_BACK, _LAST, _FIRST, _BACK)]
    return to.add("Slice", [sequence, *bounds])


# ---- activations ------------------------------------------------------------------------------


def _readers(nodes: list[onnx.NodeProto]) -> Readers:
    found: Readers = {}
    for node in nodes:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found


def _only(readers: Readers, name: str, operator: str) -> onnx.NodeProto | None:
    """The one node that reads a tensor, if it is of this operator."""
    found = readers.get(name, [])
    return found[0] if len(found) == 1 and found[0].op_type == operator else None


def _pooled_first(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with max(f(x)) computed as f(max(x)) where f never falls.

    The pooled tensor is smaller, so the activation and its gradient cost less, and its full-sized output is
    not kept for the backward pass. Values are the same to the bit. Gradients are too, except where f makes
    unequal inputs of one window equal: there f is flat, or so near to it that its output is rounded.
    """
    readers, new = _readers(nodes), dict[int, onnx.NodeProto]()
    for node in nodes:
        pool = _only(readers, node.output[0], "MaxPool") if node.op_type in _RISING else None
        if pool is None or len(pool.output) > 1 or attributes_of(node).get("alpha", 0) < 0:
            continue
        inner = f"{pool.output[0]}.pooled"
        new[id(node)] = _rewired(pool, node.input[0], inner)
        new[id(pool)] = _rewired(node, inner, pool.output[0])
    return [new.get(id(node), node) for node in nodes]


def _rewired(node: onnx.NodeProto, read: str, write: str) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[0], made.output[0] = read, write
    return made
