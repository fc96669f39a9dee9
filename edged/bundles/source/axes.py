"""Axes of a model's inputs, and a comparison of a network before and after a build."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from edged.bundles.graph.edit import AddNote, leave_only, rename, rename_reads, shape_of
from edged.bundles.source.training_mode import in_inference_form, inference_form
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError

Open = Mapping[tuple[str, int], str]


# Outputs that are no tensors have no shape, those that do not fit together make numpy raise ValueError.
_TRIAL_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError, AttributeError)
_ROWS = 3


def fix_sequence(model: onnx.ModelProto, length: int, add_note: AddNote) -> None:
    """Set the one length besides the batch that the inputs leave open, in place.

    Axes of one name have one length. If both first axes are open, a trial run decides which is the batch.

    Raises ConfigError when every length is fixed; BundleError when several are open, naming the axes.
    """
    places = _open(model.graph)
    batch = {symbol for (_, axis), symbol in places.items() if axis == 0}
    free = {place: symbol for place, symbol in places.items() if symbol not in batch}
    if not free or (_second(free) and not batch and sample_axes(model, 1)):
        raise ConfigError("the model has no axis of open length besides the batch", where="--sequence",
                          remedy="leave it out")  # fmt: skip
    if len(set(free.values())) > 1:
        raise _refusal(free)
    made = _with_length(model, set(free.values()), length)
    if batch and _second(free) and not sample_axes(made, 0):
        turned = _with_length(model, batch, length)
        if sample_axes(turned, 1):
            made, free = turned, {place: symbol for place, symbol in places.items() if symbol in batch}
    model.CopyFrom(made)
    add_note(f"the length of {_listed(free)} is fixed: {length}")


def refuse_open(graph: onnx.GraphProto) -> None:
    """Raise BundleError where an axis other than the first of an input has no fixed length."""
    if free := {place: symbol for place, symbol in _open(graph).items() if place[1] > 0}:
        raise _refusal(free)


def batch_first(model: onnx.ModelProto, add_note: AddNote) -> None:
    """Let a model whose inputs have the batch as second axis take it as the first, in place.

    The second axis is the batch where it alone is open, and a trial run shows that what lies along it is
    computed apart. Outputs that have the batch elsewhere are turned too.
    """
    graph, places = model.graph, _open(model.graph)
    if not places or not _second(places):
        return
    ends = sample_axes(model, 1)
    if ends is None:
        return
    before = [_turned(graph, value, 1) for value in list(graph.input)]
    for item in before:
        rename_reads(graph, item.input[0], item.output[0])
    behind = [_turned(graph, value, axis) for value, axis in zip(graph.output, ends, strict=True) if axis]
    for item in behind:
        rename(graph, item.output[0], item.input[0])
    nodes = list(graph.node)
    del graph.node[:], graph.value_info[:]
    graph.node.extend([*before, *nodes, *behind])
    shapes = ", ".join(f"{value.name} {shape_of(value)}" for value in graph.input)
    add_note(f"the batch was the second axis, it is the first now: {shapes}")


def sample_axes(model: onnx.ModelProto, axis: int) -> list[int] | None:
    """Axis of each output along which samples lie, where they lie along `axis` of every input.

    None when a sample changes the answer to another one, or when the model does not run with any number.
    """
    rng, given = np.random.default_rng(0), dict[str, Any]()
    for value in _inputs(model.graph):
        sizes = [size if isinstance(size, int) else _ROWS for size in shape_of(value)]
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = (*sizes[:axis], _ROWS, *sizes[axis + 1 :])
        # Whole numbers are places in a table.
        drawn = rng.integers(0, 2, shape) if kind.kind in "iu" else rng.standard_normal(shape)
        given[value.name] = drawn.astype(kind)
    try:
        session = ort.trial_session(inference_form(model).SerializeToString())
        together = session.run(None, given)
        alone = [
            session.run(None, {name: np.take(values, [row], axis) for name, values in given.items()})
            for row in range(_ROWS)
        ]
        found = [_joined_along(whole, parts) for whole, *parts in zip(together, *alone, strict=True)]
    except _TRIAL_ERRORS:
        return None
    return None if None in found else [end for end in found if end is not None]


def _joined_along(whole: NDArray[Any], parts: list[NDArray[Any]]) -> int | None:
    """The axis along which the parts are the whole; None where there is none."""
    grown = [
        i for i, (one, other) in enumerate(zip(whole.shape, parts[0].shape, strict=True)) if one != other
    ]
    if len(grown) != 1:
        return None
    return grown[0] if np.allclose(whole, np.concatenate(parts, grown[0]), rtol=1e-4, atol=1e-5) else None


def _turned(graph: onnx.GraphProto, value: onnx.ValueInfoProto, axis: int) -> onnx.NodeProto:
    """Declare `value` with this axis as the first; the Transpose between it and what the network has."""
    sizes, inner = shape_of(value), f"{value.name}.turned"
    order = [axis, *(i for i in range(len(sizes)) if i != axis)]
    kind = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(value.name, kind, [sizes[i] for i in order]))
    ends = (value.name, inner) if value in graph.input else (inner, value.name)
    return helper.make_node("Transpose", ends[:1], ends[1:], name=inner, perm=order)


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs; files of IR version 3 list every weight among them."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _open(graph: onnx.GraphProto) -> Open:
    """Axes of inputs without a fixed length; one that has no name is named after its place."""
    found = {}
    for value in _inputs(graph):
        for axis, size in enumerate(shape_of(value)):
            if not isinstance(size, int) or size < 1:
                named = isinstance(size, str) and size != "?"
                found[str(value.name), axis] = str(size) if named else f"{value.name}.{axis}"
    return found


def _second(places: Open) -> bool:
    return all(axis == 1 for _, axis in places)


def _with_length(model: onnx.ModelProto, symbols: Collection[str], length: int) -> onnx.ModelProto:
    """A copy of the model in which these lengths are fixed."""
    made = copy.deepcopy(model)
    places = [place for place, symbol in _open(model.graph).items() if symbol in symbols]
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param in symbols or (value.name, axis) in places:
                dim.dim_value = length
    return made


def _refusal(free: Open) -> BundleError:
    if len(set(free.values())) > 1:
        return BundleError(f"several lengths are open besides the batch: {_listed(free)}",
                           remedy="export the model with fixed sizes: --sequence fixes one")  # fmt: skip
    return BundleError(f"the length of {_listed(free)} is open, only the batch may be",
                       remedy="fix it with --sequence LENGTH, or in the export")  # fmt: skip


def _listed(places: Open) -> str:
    return ", ".join(
        f"axis {axis} of {name!r}" + (f" ({symbol})" if symbol != f"{name}.{axis}" else "")
        for (name, axis), symbol in places.items()
    )


# Of the largest output: more than another order of sums makes.
TOLERANCE = 1e-3
ROWS = 4
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# Sizes that are open are no numbers to multiply.
_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError, TypeError)


def check_outputs(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    rows: NDArray[np.float32] | None,
    add_note: AddNote,
) -> None:
    """Compare the outputs of two forms of a network, on recorded `rows` `(n, ...)` or on random ones.

    Dropout is left out and batch normalisation uses its running statistics in both; the batch is the first
    axis, and an output of the second form may be inside the first one. Where this onnxruntime cannot run
    the given file, `add_note` receives a line about that.

    Raises BundleError when an output differs by more than a thousandth of the largest, naming it.
    """
    in_inference_form(before.graph)
    batch_first(before, lambda _: None)
    names = [str(value.name) for value in after.graph.output]
    del before.graph.output[:]
    before.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    leave_only(before.graph, names)
    try:
        first, second = (
            ort.trial_session(inference_form(model).SerializeToString()) for model in (before, after)
        )
        numbers = _numbers(first.get_inputs(), rows)
        runs = (form.run(names, _given(form.get_inputs(), numbers)) for form in (first, second))
        pairs = list(zip(names, *runs, strict=True))
    except _ERRORS as problem:
        add_note(f"not compared with the given file, which cannot be run here: {ort.one_line(problem, 120)}")
        return
    for name, old, new in pairs:
        difference = float(np.abs(new - old).max())
        if not difference <= TOLERANCE * max(1e-6, float(np.abs(old).max())):
            raise BundleError(
                f"the output {name!r} would differ by {difference:.3g} from what the given network says",
                where=str(before.graph.name),
                remedy="export it again with opset_version=21, and report this",
            )


def _numbers(inputs: Sequence[Any], rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Rows of all inputs of a session side by side `(n, width)`; 0 for whole numbers, which are places."""
    widths = [math.prod(value.shape[1:]) for value in inputs]
    first = inputs[0].shape[0]
    count = first if isinstance(first, int) else ROWS
    if rows is not None:
        return np.resize(rows.reshape(len(rows), -1), (count, sum(widths)))
    found = np.random.default_rng(0).standard_normal((count, sum(widths))).astype(np.float32)
    for value, end in zip(inputs, accumulate(widths), strict=True):
        if "int" in value.type:
            found[:, end - math.prod(value.shape[1:]) : end] = 0
    return found


def _given(inputs: Sequence[Any], numbers: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The rows as each input takes them."""
    given, start = {}, 0
    for value in inputs:
        end = start + math.prod(value.shape[1:])
        part = numbers[:, start:end].reshape(len(numbers), *value.shape[1:])
        given[value.name], start = part.astype(_TYPES[value.type]), end
    return given
