"""Versions of the standard operators: the one that a model is served in, and the one that it is trained in.

Operators that ONNX defines by a function of simpler ones are expanded by onnx's own inliner, and an If with a
constant condition is replaced by its branch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx
from onnx import helper, inliner, version_converter

from edged.bundles.autodiff.shapes import fixed_values
from edged.bundles.graph.edit import AddNote, all_names, opset_of, rename_inputs, shortened
from edged.bundles.graph.templates import IR_VERSION, OPSET
from edged.bundles.graph.writer import NodeWriter, attributes_of, constant_node
from edged.bundles.source.inputs import STANDARD, every_node
from edged.engines.runtime import ort
from edged.errors import BundleError

# Before it, shapes are not kept in a form that the converter reads.
OLDEST = 7
# The first opset whose operators take what a build writes: lengths of parts and axes as inputs.
OLDEST_SERVED = 13
OLDEST_IR_VERSION = 8
# Functions that are differentiated through what they are made of. A rule is for the others: those that
# overflow, cancel or divide by zero as they are defined, and those that a network has in every layer.
EXPANDED = frozenset({
    "AffineGrid", "Attention", "CastLike", "Celu", "CenterCropPad", "Gelu", "GroupNormalization",
    "HardSwish", "MeanVarianceNormalization", "Mish", "PRelu", "RMSNormalization", "ReduceL1",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "RotaryEmbedding", "Shrink", "Softsign", "SwiGLU",
    "Swish", "ThresholdedRelu",
})  # fmt: skip
# exp of it is 0 beside any other score.
LOWEST_SCORE = -1e30
ERRORS = (
    RuntimeError,
    ValueError,
    version_converter.ConvertError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)


def servable_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in its own opset if that is one from 13 to 21, else in the nearest of these.

    Raises BundleError when it cannot be converted.
    """
    newest, version = int(onnx.defs.onnx_opset_version()), opset_of(model)
    if not OLDEST <= version <= newest:
        raise _refusal(model, f", this onnx {onnx.__version__} converts {OLDEST} to {newest}")
    # First the IR version: before 4 the converter looks for weights among the inputs.
    model.ir_version = min(max(model.ir_version, OLDEST_IR_VERSION), IR_VERSION)
    if version > OPSET:
        model = _expanded(model, lambda operator: not onnx.defs.has(operator, OPSET, ""))
        _take_down(model)
    return _converted(model, max(opset_of(model), OLDEST_SERVED))


def trainable_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in opset 21 with rare operators expanded; parameters, inputs and outputs keep their names.

    Raises BundleError when it cannot be converted.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    # Its scale was one of groups before opset 21, and the converter leaves it so.
    made = _expanded(made, {"GroupNormalization"}.__contains__)
    made = _expanded(_converted(made, OPSET), EXPANDED.__contains__)
    made.ir_version = IR_VERSION
    return made


def _converted(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    if opset_of(model) == version:
        return model
    try:
        return version_converter.convert_version(model, version)
    except ERRORS as problem:
        raise _refusal(model, f" and cannot be converted to {version}: {ort.one_line(problem)}") from problem


def _expanded(model: onnx.ModelProto, wanted: Callable[[str], bool]) -> onnx.ModelProto:
    """The model with the wanted operators, as far as they are functions, written in simpler ones."""
    while names := {node.op_type for node in every_node(model.graph) if _is_function(node, model, wanted)}:
        # One kind at a time: what comes out of a function has no defaults yet.
        operator, called = min(names), dict[str, str]()
        _tell_types(model.graph)
        for node in every_node(model.graph):
            if node.op_type == operator and node.domain in STANDARD:
                _write_defaults(node, opset_of(model))
                called[next(filter(None, node.output))] = node.name
        try:
            model = inliner.inline_selected_functions(model, [("", operator)], inline_schema_functions=True)
        except ERRORS as problem:
            what = f"operator {operator} cannot be expanded in this form: {ort.one_line(problem, 120)}"
            where = f"node {', '.join(sorted(set(called.values())))}"
            raise BundleError(what, where=where, remedy="export it in simpler operators") from problem
        _name_parts(model.graph, called)
        if operator == "Attention":
            _bound_scores(model.graph, set(called.values()))
    _forget_types(model.graph)
    return model


def _tell_types(graph: onnx.GraphProto) -> None:
    """Describe the initialisers: functions depend on types, and the inliner looks for them here alone."""
    _forget_types(graph)
    graph.value_info.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
    )


def _forget_types(graph: onnx.GraphProto) -> None:
    held = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.value_info if value.name not in held]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _name_parts(graph: onnx.GraphProto, called: Mapping[str, str]) -> None:
    """Name nodes that come out of a function after the node that called it, so that errors tell it."""
    caller = ""
    for node in reversed(list(every_node(graph))):
        own = next((called[name] for name in node.output if name in called), "")
        caller = own or caller
        node.name = node.name or own or f"{caller}.{node.output[0]}"


def _is_function(node: onnx.NodeProto, model: onnx.ModelProto, wanted: Callable[[str], bool]) -> bool:
    if node.domain not in STANDARD or not wanted(node.op_type):
        return False
    schema = onnx.defs.get_schema(node.op_type, opset_of(model), "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def _write_defaults(node: onnx.NodeProto, version: int) -> None:
    """Write out attributes that are left out: bodies refer to them, and the inliner does not know them."""
    given = {item.name for item in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, version, "").attributes.items():
        if name not in given and attribute.default_value.type:
            node.attribute.append(attribute.default_value)


def _bound_scores(graph: onnx.GraphProto, callers: Collection[str]) -> None:
    """Keep the scores of these attentions finite: a row without any key has gradients of 0 then, not NaN."""
    scores = {
        node.input[0]
        for node in graph.node
        if node.op_type == "Softmax" and node.name.rpartition(".")[0] in callers
    }
    for at, node in reversed(list(enumerate(graph.node))):
        # The body casts scores, float32 here, to the precision of the Softmax.
        if node.op_type == "Cast" and node.output[0] in scores:
            low, finite = f"{node.output[0]}.low", f"{node.output[0]}.finite"
            clip = helper.make_node("Clip", [node.input[0], low], [finite], name=f"{node.name}.clip")
            node.input[0] = finite
            graph.node.insert(at, clip)
            graph.node.insert(at, constant_node(low, np.array(LOWEST_SCORE, np.float32)))


def _take_down(model: onnx.ModelProto) -> None:
    """Call a model of a newer opset one of ours, in place: types came later, and options that it leaves out.

    Raises BundleError for an operator that is another one in our opset, by its node's name.
    """
    version = opset_of(model)
    for node in every_node(model.graph):
        if node.domain not in STANDARD:
            continue
        if not onnx.defs.has(node.op_type, OPSET, ""):
            raise _no_form(node, f"operator {node.op_type} of opset {version} has no form in opset {OPSET}")
        then, now = (onnx.defs.get_schema(node.op_type, of, "") for of in (version, OPSET))
        defaults = {name: item.default_value for name, item in then.attributes.items()}
        own = [
            item for item in node.attribute if item.name in now.attributes or item != defaults.get(item.name)
        ]
        if more := next((item.name for item in own if item.name not in now.attributes), ""):
            raise _no_form(node, f"operator {node.op_type} has {more}, which opset {OPSET} does not have")
        if len(node.input) > now.max_input or len(node.output) > now.max_output:
            raise _no_form(node, f"operator {node.op_type} has more inputs or outputs than in opset {OPSET}")
        del node.attribute[:]
        node.attribute.extend(own)
    for entry in model.opset_import:
        if entry.domain in STANDARD:
            entry.version = OPSET


def _no_form(node: onnx.NodeProto, what: str) -> BundleError:
    remedy = f"export with opset_version={OPSET}, or give it as a function: --op-library FILE.onnx"
    return BundleError(what, where=f"node {node.name}", remedy=remedy)


def _refusal(model: onnx.ModelProto, what: str) -> BundleError:
    return BundleError(
        f"the model has opset {opset_of(model)}{what}",
        where=str(model.graph.name),
        remedy=f"export it with opset_version={OPSET}",
    )


# ---- choices that are made before training ----------------------------------------------------


def fold_choices(model: onnx.ModelProto, add_note: AddNote) -> None:
    """Replace every If with a constant condition by its branch, in place; the others stay as they are.

    A condition is constant when it follows from constants and from sizes that do not vary with the batch.
    """
    chosen: list[str] = []
    while any(node.op_type == "If" for node in model.graph.node):
        try:
            known = fixed_values(model, [node.input[0] for node in model.graph.node if node.op_type == "If"])
        except BundleError:  # it cannot be run here, which whatever runs it next says with its reason
            break
        if not known:
            break
        folder = _Folder(model.graph)
        for node in model.graph.node:
            if node.op_type == "If" and node.input[0] in known:
                folder.write_branch(node, "then_branch" if known[node.input[0]].all() else "else_branch")
                chosen.append(str(node.name))
            else:
                folder.copy(node)
        del model.graph.node[:], model.graph.value_info[:]
        model.graph.node.extend(folder.nodes)
        model.graph.initializer.extend(folder.tensors)
    if chosen:
        add_note(f"choices with a constant condition replaced by their branch: {shortened(chosen)}")


class _Folder(NodeWriter):
    """Writes the nodes of a graph; `tensors` are the initialisers that came out of branches."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        inner = {name for node in every_node(graph) for name in (node.name, *node.input, *node.output)}
        super().__init__(all_names(graph) | inner)
        self.tensors: list[onnx.TensorProto] = []

    def write_branch(self, node: onnx.NodeProto, branch: str) -> None:
        """Write the nodes of a branch under names that the graph does not have, then its outputs."""
        body = attributes_of(node)[branch]
        scope: dict[str, str] = {}
        for tensor in body.initializer:
            scope[tensor.name] = tensor.name = self._free(tensor.name)
            self.tensors.append(tensor)
        for inner in body.node:
            rename_inputs(inner, scope)
            scope.update({name: self._free(name) for name in inner.output if name})
            inner.output[:] = [scope.get(name, "") for name in inner.output]
            inner.name = self._free(inner.name or inner.op_type)
            self.copy(inner)
        for value, name in zip(body.output, node.output, strict=True):
            self.add("Identity", [scope.get(value.name, value.name)], name)

    def _free(self, name: str) -> str:
        made, number = name, 0
        while made in self._taken:
            made, number = f"{name}.{number}", number + 1
        self._taken.add(made)
        return made
