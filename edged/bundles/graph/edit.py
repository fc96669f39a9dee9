"""Reading and rewiring ONNX graphs: the few things the offline phase does to every model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from edged.domain.bundle_contents import Tensor
from edged.errors import BundleError

# What onnx.load raises for bytes that are no model; its package has no type information.
DecodeError: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError

AddNote = Callable[[str], None]
"""Receives one line for each change of a model."""

# Of onnxruntime's own operators.
CONTRIB_DOMAIN = "com.microsoft"
DTYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


def shape_of(value: onnx.ValueInfoProto) -> list[int | str]:
    """Dimensions of an input or output; an unnamed free one is `?`."""
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]


def value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    """The graph input or output that `tensor` describes."""
    return helper.make_tensor_value_info(tensor.name, DTYPES[tensor.dtype], list(tensor.shape))


def tensor_of(value: onnx.ValueInfoProto) -> Tensor:
    """Return the description of a graph input or output; anything but int64 counts as float32."""
    integer = value.type.tensor_type.elem_type == TensorProto.INT64
    return Tensor(str(value.name), tuple(shape_of(value)), "int64" if integer else "float32")


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Bodies of If, Loop and Scan."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def consumed(graph: onnx.GraphProto) -> set[str]:
    """Names of all tensors that nodes read, bodies of control flow included."""
    return {name for node in graph.node for name in reads(node)}


def reads(node: onnx.NodeProto) -> set[str]:
    """Names of all tensors that a node reads, those that only its bodies read included."""
    found = set(node.input)
    for body in subgraphs(node):
        found |= consumed(body)
    return found


def rename_reads(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Let every node that reads `old` read `new`."""
    for node in graph.node:
        rename_inputs(node, {old: new})


def rename_inputs(node: onnx.NodeProto, new: Mapping[str, str]) -> None:
    """Let a node and its bodies read tensors under their new names."""
    for i, name in enumerate(node.input):
        node.input[i] = new.get(name, name)
    for body in subgraphs(node):
        for inner in body.node:
            rename_inputs(inner, new)


def rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Let every node that reads or writes `old` have `new` there."""
    rename_reads(graph, old, new)
    for node in graph.node:
        node.output[:] = [new if name == old else name for name in node.output]


def all_names(graph: onnx.GraphProto) -> set[str]:
    """Every tensor name of the graph."""
    names = consumed(graph)
    for group in (graph.input, graph.output, graph.initializer):
        names.update(item.name for item in group)
    for node in graph.node:
        names.update(node.output)
    return names


def needed_nodes(
    nodes: Iterable[onnx.NodeProto], names: Iterable[str]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return the nodes on which these tensors depend, in their order, and all tensors that are read there."""
    read, kept = set(names), list[onnx.NodeProto]()
    for item in reversed(list(nodes)):
        if not read.isdisjoint(item.output):
            read.update(reads(item))
            kept.append(item)
    return kept[::-1], read


def leave_only(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    """Remove nodes and initialisers that these tensors do not depend on."""
    nodes, read = needed_nodes(graph.node, names)
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)


def put_first(graph: onnx.GraphProto, added: Sequence[onnx.NodeProto]) -> None:
    """Add nodes before those of the graph."""
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*added, *rest])


def refuse_taken(graph: onnx.GraphProto, names: list[str]) -> None:
    """Raise BundleError when the model already has tensors of these names."""
    taken = sorted(all_names(graph).intersection(names))
    if taken:
        raise BundleError(
            "the model already has a tensor of a name that is needed",
            where=taken[0],
            remedy="rename it in the model, or leave out the standardisation",
        )


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the standard operators."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def shortened(names: Sequence[str], limit: int = 4) -> str:
    """Names in one line, the first ones where there are many."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
