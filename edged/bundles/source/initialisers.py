"""Which initialisers are parameters of their own: what exporters join and what they only spell out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import TensorProto, numpy_helper

from edged.bundles.autodiff.rules.recurrent import STATES
from edged.bundles.graph.edit import reads
from edged.bundles.graph.writer import attributes_of, constant_node

# What keeps zeros zeros, whatever shape it gives them.
_SHAPING = ("Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
# Places of inputs that are numbers and no weights.
_SETTINGS = {"Dropout": (1, 2), "Resize": (1, 2, 3)}
# What a mask adds where nothing is to be seen is at most this.
_HIDDEN = -1e4
# What PyTorch's exporters call tensors that are no parameters of the module.
_EXPORTERS = re.compile(r"val_\d+|onnx::\w+_\d+")
# What skl2onnx calls the numbers of a scaler.
_SCALERS = re.compile(r"[A-Z][a-z]_[A-Z][a-z]+cst\d*")


def give_each_its_own(graph: onnx.GraphProto) -> list[str]:
    """Undo the joining of parameters that only begin with the same values, as ones and zeros do.

    Exporters store equal tensors once: with an Identity that carries the other's name, or without. Trained
    so, they would stay one parameter. A tensor is taken to be joined by chance when all its numbers are
    the same one; others that several nodes read are shared on purpose and stay so. The names of the copies
    are returned.
    """
    made: list[str] = []
    for name, users in _shared(graph).items():
        original = next(tensor for tensor in graph.initializer if tensor.name == name)
        for node, i in users[1:]:
            copy = graph.initializer.add()
            copy.CopyFrom(original)
            if node.op_type == "Identity":
                copy.name = node.output[0]
                graph.node.remove(node)
            else:
                copy.name = _free_name(graph, f"{name}.{node.name}")
                node.input[i] = copy.name
            made.append(str(copy.name))
    return made


def _shared(graph: onnx.GraphProto) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
    """Parameters of one repeated number and who reads them, a renaming Identity last."""
    chance = {str(t.name) for t in graph.initializer if _is_uniform(t)}
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    ends = {value.name for value in graph.output}
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in chance and not (node.op_type == "Identity" and node.output[0] in ends):
                users.setdefault(name, []).append((node, i))
    for found in users.values():
        found.sort(key=lambda user: user[0].op_type == "Identity")
    return {name: found for name, found in users.items() if len(found) > 1}


def _is_uniform(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) == 0:
        return False
    values = numpy_helper.to_array(tensor)
    return values.size > 0 and bool((values == values.flat[0]).all())


def _free_name(graph: onnx.GraphProto, name: str) -> str:
    taken = {tensor.name for tensor in graph.initializer}
    return name if name not in taken else f"{name}.{len(taken)}"


def fix_group_statistics(graph: onnx.GraphProto) -> None:
    """Make constants of the ones and zeros of a group normalisation.

    It is exported as an InstanceNormalization between two Reshapes, whose scale and bias the network does
    not have: its own come behind. As initialisers they would be trained.
    """
    reshapes = [node for node in graph.node if node.op_type == "Reshape"]
    before = {name for node in reshapes for name in node.output}
    behind = {node.input[0] for node in reshapes}
    for node in list(graph.node):
        between = node.input[:1] and node.input[0] in before and node.output[0] in behind
        if node.op_type == "InstanceNormalization" and between:
            for i, tensor, neutral in _affine(graph, node):
                if (numpy_helper.to_array(tensor) == neutral).all():
                    name = f"{node.name}.{'scale' if i == 1 else 'bias'}"
                    node.input[i] = name
                    graph.node.insert(0, constant_node(name, numpy_helper.to_array(tensor)))


def fix_numbers(graph: onnx.GraphProto) -> list[str]:
    """Make constants of masks, and of numbers that an exporter wrote as tensors under names of its own.

    PyTorch's newer exporter does so with the scale of an attention `(1,)`, skl2onnx with a scaler's. As
    initialisers they would be trained. The names are returned.
    """
    numbers = [
        t for t in graph.initializer if t.data_type == TensorProto.FLOAT and (_is_exporters(t) or _is_mask(t))
    ]
    for tensor in numbers:
        graph.initializer.remove(tensor)
        graph.node.insert(0, constant_node(str(tensor.name), numpy_helper.to_array(tensor)))
    return [str(tensor.name) for tensor in numbers]


def fix_settings(graph: onnx.GraphProto) -> None:
    """Make constants of what only says how a node computes, such as the scales of a Resize."""
    places: dict[str, set[bool]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            places.setdefault(name, set()).add(place in _SETTINGS.get(node.op_type, ()))
    for tensor in [t for t in graph.initializer if places.get(t.name) == {True}]:
        graph.initializer.remove(tensor)
        graph.node.insert(0, constant_node(str(tensor.name), numpy_helper.to_array(tensor)))


def _is_mask(tensor: onnx.TensorProto) -> bool:
    if len(tensor.dims) < 2:
        return False
    return bool(numpy_helper.to_array(tensor).min(initial=0) <= _HIDDEN)


def _is_exporters(tensor: onnx.TensorProto) -> bool:
    single = list(tensor.dims) == [1] and _EXPORTERS.fullmatch(tensor.name)
    return bool(single or _SCALERS.fullmatch(tensor.name))


def _affine(graph: onnx.GraphProto, node: onnx.NodeProto) -> Iterator[tuple[int, onnx.TensorProto, int]]:
    for i, neutral in ((1, 1), (2, 0)):
        for tensor in graph.initializer:
            if tensor.name == node.input[i]:
                yield i, tensor, neutral


def without_zero_states(graph: onnx.GraphProto) -> None:
    """Leave out initial states that are written in the model as zeros, which they are anyway.

    Exporters write them with the batch size of the export, and as weights.
    """
    zeros = _zero_tensors(graph)
    for node in graph.node:
        for place in _states(node):
            if place < len(node.input) and node.input[place] in zeros:
                node.input[place] = ""
    _drop_unread(graph, zeros)


def _states(node: onnx.NodeProto) -> range:
    """Places of the initial states among the inputs."""
    return range(5, 5 + STATES.get(node.op_type, 0))


def _zero_tensors(graph: onnx.GraphProto) -> set[str]:
    found = {str(item.name) for item in graph.initializer if is_zero(item)}
    for node in graph.node:
        given = attributes_of(node)
        tensor = given.get("value")
        if node.op_type in ("Constant", "ConstantOfShape"):
            zero = tensor is not None and is_zero(tensor)
            zero |= node.op_type == "ConstantOfShape" and tensor is None
        else:
            zero = node.op_type in _SHAPING and node.input[0] in found
        if zero:
            found.add(str(node.output[0]))
    return found


def is_zero(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor that is in the model is nothing but zeros."""
    return not numpy_helper.to_array(tensor).any()


def _drop_unread(graph: onnx.GraphProto, names: set[str]) -> None:
    """Nodes that make zeros for nobody."""
    readers = Counter([value.name for value in graph.output])
    for node in graph.node:
        readers.update(reads(node))
    for node in reversed(list(graph.node)):
        if node.output[0] in names and not readers[node.output[0]]:
            graph.node.remove(node)
            readers.subtract(reads(node))
