"""Bringing a model from anywhere into the form the offline phase works on, or refusing it clearly."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import TensorProto

from edged.bundles.autodiff.shapes import sizes_of
from edged.bundles.autodiff.tape import BATCH, Dims
from edged.bundles.graph.edit import (
    AddNote,
    DecodeError,
    consumed,
    leave_only,
    opset_of,
    rename,
    shape_of,
    shortened,
)
from edged.bundles.source import axes, classifiers, initialisers, inputs
from edged.bundles.source.classifiers import refuse_finished
from edged.bundles.source.inputs import refuse_unknown, write_out
from edged.bundles.source.opset import ERRORS, fold_choices, servable_form
from edged.bundles.source.training_mode import in_inference_form, inference_form, without_inactive
from edged.engines.onnx.fields import whole_model
from edged.engines.runtime import ort
from edged.errors import BundleError, CorruptError

MOST = 1_800_000_000  # bytes that one message has room for, with what a build adds
_PYTORCH = (".pt", ".pt2", ".pth")


def read_model(source: onnx.ModelProto | Path) -> onnx.ModelProto:
    """A private copy of the model, or the model in file `source`, with what of it is in other files.

    Raises BundleError when the file cannot be read as an ONNX model.
    """
    if not isinstance(source, (str, Path)):
        return copy.deepcopy(source)
    try:
        content = whole_model(Path(source))
    except CorruptError as problem:
        raise BundleError(problem.what, where=problem.where, remedy="export it again") from problem
    if len(content) > MOST:
        what = f"the model has {len(content):,} bytes, {MOST:,} can be built from"
        raise BundleError(what, where=str(source), remedy="use a smaller model")
    try:
        return onnx.load_model_from_string(content)
    except (DecodeError, *ERRORS) as problem:
        ours = "export it with torch.onnx.export, in evaluation mode: docs/preflight.md"
        remedy = ours if Path(source).suffix in _PYTORCH else "export it again, or see if it was cut short"
        raise BundleError("is no ONNX model", where=str(source), remedy=remedy) from problem


def conform(
    model: onnx.ModelProto,
    *,
    all_outputs: bool = False,
    library: onnx.ModelProto | None = None,
    add_note: AddNote = lambda _: None,
) -> onnx.ModelProto:
    """The model with an opset from 13 to 21, a dynamic batch axis, one float32 input and its outputs.

    With `all_outputs` it keeps its float32 outputs. Else it must have exactly one, or be a classifier that
    also gives labels, which is cut at its logits.

    Input and outputs keep their names. Nodes without a name get one, so that errors can name them. Only
    dropout is left as a training export has it; `inference_form` is without.

    The model is changed. `library` is a model with functions for operators that are not ONNX's own.
    `add_note` receives one line for each change of what the network computes in or is stored as.

    Raises BundleError when it cannot be brought there, naming what stands in the way; ConfigError when the
    library has no functions.
    """
    model = write_out(model, library, add_note)
    _weights_are_no_inputs(model.graph)
    _name_nodes(model.graph)
    refuse_finished(model.graph)
    if not all_outputs:
        if logits := classifiers.cut_before_loss(model.graph, add_note):
            _keep_output(model.graph, logits)
        _check_one(model.graph.output, "output", "export one output only, or use a function as the loss")
    classifiers.write_out_scalers(model)
    refuse_unknown(model)
    inputs.in_single_precision(model, add_note)
    came = opset_of(model)
    _name_nodes(model.graph)
    model = servable_form(model)
    if came != opset_of(model):
        add_note(f"brought from opset {came} to opset {opset_of(model)}")
    fold_choices(model, add_note)
    axes.batch_first(model, add_note)
    axes.refuse_open(model.graph)
    inputs.one_row(model.graph, add_note)
    _check_one(model.graph.input, "input", "a network needs an input")
    for value in (*model.graph.input, *model.graph.output):
        _check_value(value, "input" if value in model.graph.input else "output")
    for output in model.graph.output:
        _output_is_computed(model.graph, output.name)
    _name_nodes(model.graph)
    _undo_export(model.graph, add_note)
    _free_batch(model, add_note)
    return _with_shapes(_infer_shapes(model))


def parameter_names(graph: onnx.GraphProto, *, scalars: bool = False) -> list[str]:
    """Float32 initializers that nodes read, in the model's order.

    Those of rank 0 are bounds, exponents and the like rather than weights: only with `scalars`.
    """
    read = consumed(graph)
    return [
        str(tensor.name)
        for tensor in graph.initializer
        if tensor.name in read and tensor.data_type == TensorProto.FLOAT and (scalars or len(tensor.dims) > 0)
    ]


def _weights_are_no_inputs(graph: onnx.GraphProto) -> None:
    # Files of IR version 3 list every weight as an input too.
    weights = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(kept)


def _check_one(values: Iterable[onnx.ValueInfoProto], what: str, remedy: str) -> None:
    names = [value.name for value in values]
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise BundleError(f"the model must have exactly one {what}, it has: {found}", remedy=remedy)


def _keep_output(graph: onnx.GraphProto, name: str) -> None:
    """Leave this output, and only what it depends on."""
    kept = [value for value in graph.output if value.name == name]
    del graph.output[:]
    graph.output.extend(kept)
    leave_only(graph, [name])


def _check_value(value: onnx.ValueInfoProto, what: str) -> None:
    if value.type.tensor_type.elem_type != TensorProto.FLOAT:
        raise BundleError(f"the model's {what} must be float32", where=value.name)
    if len(value.type.tensor_type.shape.dim) < 2:
        raise BundleError(
            f"the model's {what} has shape {shape_of(value)}, it must be (batch, sizes...)",
            where=value.name,
            remedy="export it with a batch axis first",
        )


def _output_is_computed(graph: onnx.GraphProto, name: str) -> None:
    if not any(name in node.output for node in graph.node):
        raise BundleError("no node computes the model's output", where=name)
    if name in consumed(graph):
        # The output must end the graph: what is put behind it must not feed back into the network.
        inner = f"{name}.inner"
        rename(graph, name, inner)
        graph.node.append(onnx.helper.make_node("Identity", [inner], [name], name=f"{name}.identity"))


def _name_nodes(graph: onnx.GraphProto) -> None:
    """A name of its own for every node: ONNX asks for none, onnxruntime refuses two of the same."""
    given, taken = {node.name for node in graph.node}, {""}
    for i, node in enumerate(graph.node):
        if node.name in taken:
            name = f"{node.op_type}_{i}"
            node.name = name if name not in given | taken else f"{name}.{len(given | taken)}"
        taken.add(node.name)


def _undo_export(graph: onnx.GraphProto, add_note: AddNote) -> None:
    """Undo what exporters do to a network that is only to be served, or only to be trained."""
    initialisers.without_zero_states(graph)
    initialisers.fix_settings(graph)
    if fixed := initialisers.fix_numbers(graph):
        add_note(f"numbers of the exporter's, no parameters: {shortened(fixed)}")
    if parted := initialisers.give_each_its_own(graph):
        add_note(f"stored once by the exporter, each its own parameter again: {shortened(parted)}")
    initialisers.fix_group_statistics(graph)
    if turned := in_inference_form(graph):
        add_note(f"exported in training mode, in inference with its running statistics: {shortened(turned)}")
    without_inactive(graph)


def _free_batch(model: onnx.ModelProto, add_note: AddNote) -> None:
    graph = model.graph
    rows = shape_of(graph.input[0])[0]
    was_fixed = isinstance(rows, int)
    for value in (graph.input[0], *graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    if was_fixed:
        # Shapes in between were made for the fixed batch.
        del graph.value_info[:]
        if axes.sample_axes(model, 0) != [0] * len(graph.output):
            raise BundleError(
                "the batch size is fixed inside the graph",
                where=graph.input[0].name,
                remedy="export with a dynamic batch axis",
            )
        add_note(f"the batch was fixed at {rows}: it may be of any size now")


def _infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except ERRORS as problem:
        what = f"the model's shapes contradict each other: {ort.one_line(problem)}"
        raise BundleError(what, where=str(model.graph.name)) from problem


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Fill in the shapes that inference leaves open, as behind a Reshape to a computed shape."""
    open_ones = {
        str(value.name): value
        for value in (*model.graph.value_info, *model.graph.output)
        if any(not isinstance(size, int) and size != BATCH for size in shape_of(value))
    }
    if open_ones:
        found = sizes_of(inference_form(model))
        for name, value in open_ones.items():
            dims = found.get(name, ())
            if len(dims) == len(value.type.tensor_type.shape.dim):
                _set_shape(value, dims)
    return model


def _set_shape(value: onnx.ValueInfoProto, dims: Dims) -> None:
    for dim, size in zip(value.type.tensor_type.shape.dim, dims, strict=True):
        if isinstance(size, int):
            dim.dim_value = size
        elif size == BATCH:
            dim.dim_param = BATCH
