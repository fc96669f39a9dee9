"""Operators that came after opset 17, written in older ones before a model is converted down.

Definitions as in the ONNX operator specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from edged.bundles.graph.edit import opset_of
from edged.bundles.graph.network import OPSET
from edged.bundles.graph.writer import attributes_of, untrainable
from edged.bundles.source.attention import attention
from edged.bundles.source.initialisers import fix_settings
from edged.bundles.source.known import WAITING, Informed
from edged.errors import BundleError

_OLDER = f"export with opset_version={OPSET}"


def mish(node: onnx.NodeProto, to: Informed) -> None:
    """x·tanh(log(1 + exp(x))) (Misra 2019)."""
    x = node.input[0]
    to.add("Mul", [x, to.add("Tanh", [to.add("Softplus", [x])])], node.output[0])


def gelu(node: onnx.NodeProto, to: Informed) -> None:
    """½·x·(1 + erf(x/√2)), or ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) (Hendrycks and Gimpel 2016)."""
    x = node.input[0]
    if attributes_of(node).get("approximate", "none") == "tanh":
        cube = to.add("Mul", [to.add("Mul", [to.add("Mul", [x, x]), x]), to.number(0.044715)])
        inner = to.add("Mul", [to.add("Add", [x, cube]), to.number(math.sqrt(2 / math.pi))])
        part = to.add("Tanh", [inner])
    else:
        part = to.add("Erf", [to.add("Div", [x, to.number(math.sqrt(2))])])
    twice = to.add("Mul", [x, to.add("Add", [part, to.number(1)])])
    to.add("Mul", [twice, to.number(0.5)], node.output[0])


def swish(node: onnx.NodeProto, to: Informed) -> None:
    """x·σ(αx) (Ramachandran, Zoph and Le 2017); SwiGLU is that times its second input (Shazeer 2020)."""
    x, alpha = node.input[0], attributes_of(node).get("alpha", 1.0)
    scaled = x if alpha == 1 else to.add("Mul", [x, to.number(alpha)])
    gate = to.add("Sigmoid", [scaled])
    if len(node.input) > 1:
        gate = to.add("Mul", [gate, node.input[1]])
    to.add("Mul", [x, gate], node.output[0])


def group_normalization(node: onnx.NodeProto, to: Informed) -> None:
    """An InstanceNormalization of the groups, then γ and β (Wu and He 2018).

    Opset 18 has a γ and a β for each group, opset 21 for each channel.
    """
    x, scale, bias = node.input
    given = attributes_of(node)
    groups, channels = int(given["num_groups"]), to.shape(x, node)[1]
    each = to.shape(scale, node)[0]
    if channels is None or each not in (groups, channels):
        raise untrainable(node, "the number of its channels is not known")
    by_group = each == groups != channels
    affine = [scale, bias] if by_group else [_filled(to, [value] * groups) for value in (1, 0)]
    grouped = to.add("Reshape", [x, to.sizes(0, groups, -1)])
    normal = to.add("InstanceNormalization", [grouped, *affine], epsilon=given.get("epsilon", 1e-5))
    back = to.add("Reshape", [normal, to.add("Shape", [x])], node.output[0] if by_group else "")
    if not by_group:
        flat = to.sizes(-1, *([1] * (len(to.shape(x, node)) - 2)))
        scaled = to.add("Mul", [back, to.add("Reshape", [scale, flat])])
        to.add("Add", [scaled, to.add("Reshape", [bias, flat])], node.output[0])


def rms_normalization(node: onnx.NodeProto, to: Informed) -> None:
    """γ·x/√(mean(x²) + ε), the mean over the axes from `axis` on (Zhang and Sennrich 2019)."""
    x, scale = node.input
    given, rank = attributes_of(node), len(to.shape(x, node))
    axes = to.sizes(*range(given.get("axis", -1) % rank, rank))
    square = to.add("ReduceMean", [to.add("Mul", [x, x]), axes], keepdims=1)
    root = to.add("Sqrt", [to.add("Add", [square, to.number(given.get("epsilon", 1e-5))])])
    to.add("Mul", [to.add("Div", [x, root]), scale], node.output[0])


def pad(node: onnx.NodeProto, to: Informed) -> None:
    """As it is; amounts for some axes become amounts for all."""
    x, amounts, value, axes = [*node.input, "", ""][:4]
    if attributes_of(node).get("mode", "constant") == "wrap":
        raise untrainable(node, "its mode is wrap, which opset 17 does not have")
    if axes:
        rank, given, chosen = len(to.shape(x, node)), to.value(amounts), to.value(axes)
        if given is None or chosen is None:
            raise untrainable(node, "its amounts or axes are computed")
        whole = np.zeros((2, rank), np.int64)
        whole[:, [int(axis) % rank for axis in chosen]] = np.reshape(given, (2, -1))
        amounts = to.sizes(*whole.ravel().tolist())
    as_before(node, to, inputs=[x, amounts, value] if value else [x, amounts])


def as_before(
    node: onnx.NodeProto, to: Informed, inputs: Sequence[str] | None = None, without: Sequence[str] = ()
) -> None:
    """As it is, but for inputs and attributes: what came later are types, or options that are left out.

    It waits in a domain that the version converter leaves alone.
    """
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.domain = WAITING
    del made.input[:], made.attribute[:]
    made.input.extend(node.input if inputs is None else inputs)
    made.attribute.extend(item for item in node.attribute if item.name not in without)
    to.copy(made)


def _filled(to: Informed, value: Any) -> str:
    # A Constant node and no initialiser, which would be a parameter.
    return to.add("Constant", [], value=onnx.numpy_helper.from_array(np.asarray(value, np.float32)))


def split(node: onnx.NodeProto, to: Informed) -> None:
    """Parts of the same length, the last one perhaps shorter, or of the given lengths."""
    lengths, parts = list(node.input[1:]), len(node.output)
    size = to.shape(node.input[0], node)[attributes_of(node).get("axis", 0)] if not lengths else None
    if size is not None and size % parts:
        each = -(-size // parts)
        lengths = [to.sizes(*([each] * (parts - 1)), size - each * (parts - 1))]
    as_before(node, to, [node.input[0], *lengths], without=["num_outputs"])


def cast(node: onnx.NodeProto, to: Informed) -> None:
    """As it is: how numbers of eight bits are rounded concerns no type of opset 17."""
    as_before(node, to, without=["saturate", "round_mode"])


def reduction(node: onnx.NodeProto, to: Informed) -> None:
    """As it is; along no axes at all, what it does to every element alone."""
    axes = to.value(node.input[1]) if len(node.input) > 1 and node.input[1] else np.array([])
    if not attributes_of(node).get("noop_with_empty_axes", 0) or axes is None or axes.size:
        to.copy(node)
        return
    alone = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log", "ReduceSumSquare": "Mul"}
    operator = alone.get(node.op_type, "Identity")
    to.add(operator, [node.input[0]] * (2 if operator == "Mul" else 1), node.output[0])


def pool(node: onnx.NodeProto, to: Informed) -> None:
    """As it is, where it has no dilations and, but for averages, no windows that reach beyond its input."""
    given, average = attributes_of(node), node.op_type == "AveragePool"
    if given.get("ceil_mode", 0) and not average:
        raise untrainable(node, "it has ceil_mode, which opset 17 does not have", _OLDER)
    if set(given.get("dilations", [1])) != {1}:
        raise untrainable(node, "it has dilations, which opset 17 does not have", _OLDER)
    as_before(node, to, without=["dilations"] if average else ["ceil_mode", "dilations"])


def resize(node: onnx.NodeProto, to: Informed) -> None:
    """As it is, without the options that came after opset 17."""
    given = attributes_of(node)
    policy = given.get("keep_aspect_ratio_policy", "stretch")
    if given.get("antialias", 0) or policy != "stretch":
        raise untrainable(node, "its antialias or keep_aspect_ratio_policy is none of opset 17")
    if given.get("coordinate_transformation_mode") == "half_pixel_symmetric":
        raise untrainable(node, "its mode is half_pixel_symmetric, which opset 17 does not have")
    if given.get("axes"):
        raise untrainable(node, "its axes are some, which opset 17 does not have", _OLDER)
    as_before(node, to, without=["antialias", "axes", "keep_aspect_ratio_policy"])


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
RULES: Mapping[str, Callable[[onnx.NodeProto, Informed], None]] = {
    "Attention": attention,
    "AveragePool": pool,
    "Cast": cast,
    "ConstantOfShape": as_before,
    "Gelu": gelu,
    "GlobalMaxPool": as_before,
    "GroupNormalization": group_normalization,
    "LpPool": pool,
    "Mish": mish,
    "Pad": pad,
    "RMSNormalization": rms_normalization,
    "Resize": resize,
    "Split": split,
    "SwiGLU": swish,
    "Swish": swish,
    **{f"Reduce{kind}": reduction for kind in _REDUCTIONS},
}


def express(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, still of its own opset, without what the version converter cannot bring to opset 17.

    Raises BundleError when an operator cannot be expressed, naming its node.
    """
    if opset_of(model) <= OPSET:
        return model
    _refuse_newer(model)
    if not any(_is_newer(node) for node in model.graph.node):
        return model
    fix_settings(model.graph)
    to = Informed(model)
    for node in model.graph.node:
        if _is_newer(node):
            RULES[node.op_type](node, to)
        else:
            to.copy(node)
    graph = helper.make_graph(
        to.nodes, model.graph.name, model.graph.input, model.graph.output,
        [*model.graph.initializer, *to.constants], value_info=model.graph.value_info,
    )  # fmt: skip
    opsets = [*model.opset_import, helper.make_opsetid(WAITING, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def _refuse_newer(model: onnx.ModelProto) -> None:
    """Raise BundleError for an operator that opset 17 does not have in any form, by its node's name."""
    for node in model.graph.node:
        if (
            node.domain in ("", "ai.onnx")
            and not _is_newer(node)
            and not onnx.defs.has(node.op_type, OPSET, "")
        ):
            raise BundleError(
                f"operator {node.op_type} of opset {opset_of(model)} has no form in opset {OPSET}",
                where=f"node {node.name}",
                remedy=f"export with opset_version={OPSET}, or give it as a function: --op-library FILE.onnx",
            )


def _is_newer(node: onnx.NodeProto) -> bool:
    return node.op_type in RULES and node.domain in ("", "ai.onnx")


def finish(model: onnx.ModelProto) -> None:
    """Complete a conversion to opset 17: what waited comes back, what no longer exists is dropped."""
    for node in model.graph.node:
        if node.domain == WAITING:
            node.domain = ""
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum":
            # The converter turns the axes back into an attribute and forgets this one.
            kept = [item for item in node.attribute if item.name != "noop_with_empty_axes"]
            del node.attribute[:]
            node.attribute.extend(kept)
    kept_opsets = [entry for entry in model.opset_import if entry.domain != WAITING]
    del model.opset_import[:]
    model.opset_import.extend(kept_opsets)
