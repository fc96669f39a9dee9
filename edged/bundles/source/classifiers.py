"""Networks as they are exported to be served, and models with a loss or gradients in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import CONTRIB_DOMAIN, AddNote, shape_of
from edged.bundles.graph.writer import NodeWriter, attributes_of, constant_node
from edged.errors import BundleError

_DOMAIN = "ai.onnx.ml"
_PROBABILITIES = {"Softmax": "cross_entropy", "Sigmoid": "bce_with_logits"}
# What makes labels and maps of probabilities.
_BEHIND = {
    "ArgMax", "ArrayFeatureExtractor", "Binarizer", "Cast", "Concat", "Identity", "Reshape", "Squeeze", "Sub",
    "ZipMap",
}  # fmt: skip
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def cut_before_loss(graph: onnx.GraphProto, add_note: AddNote) -> str | None:
    """Cut a graph, in place, before what the loss does itself: a classifier at its logits. Their name.

    None, and nothing changed, when no output is a label or a map, or when the outputs are made of anything
    but one Softmax or Sigmoid.
    """
    makers = {name: item for item in graph.node for name in item.output}
    if all(value.type.tensor_type.elem_type in _FLOATS for value in graph.output):
        return _targets(graph, makers)
    names, ends = [str(value.name) for value in graph.output], dict[str, onnx.NodeProto]()
    for name in names:
        maker = makers.get(name)
        if maker is not None and maker.op_type in _BEHIND:
            names += maker.input
        elif maker is not None and maker.op_type in _PROBABILITIES:
            ends[name] = maker
        elif maker is not None:
            return None
    if len(ends) != 1:
        return None
    (last,) = ends.values()
    logits = _cut(graph, last)
    add_note(f"a classifier, cut at its logits ({logits}) for --loss {_PROBABILITIES[last.op_type]}:"
         f" node {last.name} and what is behind it are left out")  # fmt: skip
    return logits


def _targets(graph: onnx.GraphProto, makers: Mapping[str, onnx.NodeProto]) -> str | None:
    """What a column is made of, where it is several numbers for each row."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    last = makers.get(graph.output[0].name) if len(graph.output) == 1 else None
    if last is None or last.op_type != "Reshape" or last.input[1] not in held:
        return None
    before = makers.get(last.input[0])
    if before is None or before.op_type != "Add" or before.input[1] not in held:
        return None
    column = numpy_helper.to_array(held[last.input[1]]).tolist() == [-1, 1]
    return _cut(graph, last) if column and held[before.input[1]].dims[-1:] > [1] else None


def _cut(graph: onnx.GraphProto, last: onnx.NodeProto) -> str:
    """Let the graph end before a node."""
    end = str(last.input[0])
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(end, TensorProto.FLOAT, ["batch", None]))
    return end


def class_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """The labels that a classifier of scikit-learn carries, in the order of its outputs.

    Empty where they are their own positions, 0, 1, 2 and so on.
    """
    tables = [item.input[0] for item in graph.node if item.op_type == "ArrayFeatureExtractor"]
    for tensor in graph.initializer:
        if tensor.name in tables:
            found = [each.decode() if isinstance(each, bytes) else str(each)
                     for each in numpy_helper.to_array(tensor).ravel()]  # fmt: skip
            return () if found == [str(i) for i in range(len(found))] else tuple(found)
    return ()


def write_out_scalers(model: onnx.ModelProto) -> None:
    """Express every Scaler, as scikit-learn's are exported, by standard operators: (x - offset)·scale."""
    to = NodeWriter()
    for item in model.graph.node:
        if (item.domain, item.op_type) != (_DOMAIN, "Scaler"):
            to.copy(item)
            continue
        x, y, given = item.input[0], item.output[0], attributes_of(item)
        for name in ("offset", "scale"):
            to.copy(constant_node(f"{y}.{name}", np.array(given[name], np.float32)))
        # It takes whole numbers too, and always gives float32.
        to.add("Cast", [x], f"{y}.given", to=TensorProto.FLOAT)
        to.add("Sub", [f"{y}.given", f"{y}.offset"], f"{y}.centred")
        to.add("Mul", [f"{y}.centred", f"{y}.scale"], y)
    del model.graph.node[:]
    model.graph.node.extend(to.nodes)
    if not any(item.domain == _DOMAIN for item in to.nodes):
        kept = [entry for entry in model.opset_import if entry.domain != _DOMAIN]
        del model.opset_import[:]
        model.opset_import.extend(kept)


_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_APPLIED = {"cross_entropy": ("Softmax",), "bce_with_logits": ("Sigmoid", "Softmax")}


def refuse_finished(graph: onnx.GraphProto) -> None:
    """Raise BundleError for a graph that has a loss already, or gradients.

    A loss is an operator that is one, or an output of a single number where there is more than one input.
    """
    for node in graph.node:
        if node.domain == CONTRIB_DOMAIN and node.op_type.endswith(("Grad", "Accumulator", "AccumulatorV2")):
            raise BundleError("this is a training graph: it has gradients", where=f"node {node.name}",
                              remedy="give the network that it was made from")  # fmt: skip
        if node.op_type in _LOSSES:
            where, said = f"node {node.name}", f"operator {node.op_type}"
            raise _with_loss(where, said, f"export the network up to {_prediction(graph, node)!r}")
    if len(graph.input) > 1:
        for value in graph.output:
            sizes = shape_of(value)
            if value.type.tensor_type.HasField("shape") and sizes in ([], [1]):
                raise _with_loss(str(value.name), "a single number", "export the network without it")


def _with_loss(where: str, said: str, remedy: str) -> BundleError:
    what = f"the model ends in a loss already: {said}"
    return BundleError(what, where=where, remedy=f"{remedy}; --loss puts the loss behind it")


def _prediction(graph: onnx.GraphProto, loss: onnx.NodeProto) -> str:
    """The tensor that the loss judges; of a likelihood, what its LogSoftmax reads."""
    name = str(loss.input[0])
    before = next((node for node in graph.node if name in node.output), None)
    return str(before.input[0]) if before is not None and before.op_type == "LogSoftmax" else name


def warn_about_probabilities(graph: onnx.GraphProto, loss: str, add_note: AddNote) -> None:
    """Tell when the network ends in what the loss applies itself: it takes logits."""
    last = next((node for node in graph.node if graph.output[0].name in node.output), None)
    if last is not None and last.op_type in _APPLIED.get(loss, ()):
        add_note(f"node {last.name}: the network ends in {last.op_type}, which {loss} applies itself:"
             " it learns slowly so; export it without")  # fmt: skip
