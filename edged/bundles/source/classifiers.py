"""Networks as they are exported to be served, with labels and probabilities; scikit-learn's above all.

skl2onnx writes an `MLPClassifier` as layers, a Softmax or Sigmoid, and behind it the label of the largest
probability and a map from labels to probabilities. A network is trained by its logits. Several targets of an
`MLPRegressor` are written as one column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import node
from edged.bundles.graph.writer import attributes_of

_DOMAIN = "ai.onnx.ml"
_PROBABILITIES = {"Softmax": "cross_entropy", "Sigmoid": "bce_with_logits"}
# What makes labels and maps of probabilities.
_BEHIND = {
    "ArgMax", "ArrayFeatureExtractor", "Binarizer", "Cast", "Concat", "Identity", "Reshape", "Squeeze", "Sub",
    "ZipMap",
}  # fmt: skip
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def cut_before_loss(graph: onnx.GraphProto, add_note: Callable[[str], None]) -> str | None:
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
    nodes = list[onnx.NodeProto]()
    for item in model.graph.node:
        if (item.domain, item.op_type) != (_DOMAIN, "Scaler"):
            nodes.append(item)
            continue
        x, y, given = item.input[0], item.output[0], attributes_of(item)
        nodes += [_constant(f"{y}.{name}", given[name]) for name in ("offset", "scale")]
        # It takes whole numbers too, and always gives float32.
        nodes.append(node("Cast", [x], f"{y}.given", to=TensorProto.FLOAT))
        nodes.append(node("Sub", [f"{y}.given", f"{y}.offset"], f"{y}.centred"))
        nodes.append(node("Mul", [f"{y}.centred", f"{y}.scale"], y))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    if not any(item.domain == _DOMAIN for item in nodes):
        kept = [entry for entry in model.opset_import if entry.domain != _DOMAIN]
        del model.opset_import[:]
        model.opset_import.extend(kept)


def _constant(name: str, values: list[float]) -> onnx.NodeProto:
    # No initialiser, which would be a parameter.
    return node("Constant", [], name, value=numpy_helper.from_array(np.array(values, np.float32)))
