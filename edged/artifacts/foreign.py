"""Directories made by upstream's `generate_artifacts`, which carry no description: read from the graphs."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import onnx

from edged.artifacts import upstream
from edged.artifacts.graphs import DecodeError, opset_of, shape_of
from edged.errors import BundleError, CorruptError
from edged.storage.bundles import DESCRIPTION, Bundle, FileEntry, Tensor

if TYPE_CHECKING:
    from pathlib import Path

FILES = (upstream.TRAINING, upstream.EVALUATION, upstream.OPTIMIZER, upstream.CHECKPOINT)

# Upstream names whatever it adds like this.
_ADDED = re.compile(r"^onnx::.+::\d+$")
_BUFFER = "_grad.accumulation.buffer"
_LOSSES = {
    "SoftmaxCrossEntropyLoss": "cross_entropy",
    "Sigmoid": "bce_with_logits",
    "Abs": "l1",
    "Pow": "mse",
}
_OPTIMIZERS = {"AdamWOptimizer": "adamw", "SGDOptimizerV2": "sgd"}


def is_foreign(path: Path) -> bool:
    """Whether `path` holds upstream's files but no description of ours."""
    return (path / upstream.TRAINING).is_file() and not (path / DESCRIPTION).exists()


def describe(path: Path) -> Bundle:
    """What a `bundle.json` would say, derived from the graphs in `path`.

    Raises
    ------
    BundleError
        When a file is missing or the graphs are not of the usual form.
    CorruptError
        When a graph cannot be read.
    """
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing:
        raise BundleError(f"{missing[0]} is missing", where=str(path), remedy="generate all four artifacts")
    evaluation = load_graph(path / upstream.EVALUATION)
    nodes = [node for node in evaluation.graph.node if _ADDED.match(node.output[0])]
    label = _label(evaluation.graph, nodes, path)
    names = [value.name for value in evaluation.graph.input]
    parameters = names[names.index(label.name) + 1 :]
    if names.index(label.name) != 1:
        raise BundleError("the model must have exactly one input", where=str(path / upstream.EVALUATION))
    trainable = _trainable(path)
    return Bundle(
        path=path,
        edged="",
        loss=next((_LOSSES[node.op_type] for node in nodes if node.op_type in _LOSSES), "custom"),
        optimizer=_optimizer(path),
        input=_tensor(evaluation.graph.input[0]),
        output=_output(evaluation, nodes, path),
        label=label,
        trainable=tuple(name for name in parameters if name in trainable),
        frozen=tuple(name for name in parameters if name not in trainable),
        opset=opset_of(evaluation),
        files={name: FileEntry.of(path / name) for name in FILES},
    )


def adopt(path: Path, into: Path) -> tuple[Bundle, list[str]]:
    """A readable copy of the artifacts in directory `into`, and notes about what had to be changed."""
    notes = []
    for name in FILES:
        shutil.copyfile(path / name, into / name)
        if name != upstream.CHECKPOINT and (old := upstream.make_readable(into / name)) is not None:
            notes.append(f"{name} has IR version {old}, this runtime reads up to {upstream.MAX_IR_VERSION}")
    return describe(into), notes


def load_graph(path: Path) -> onnx.ModelProto:
    """The ONNX file at `path`; CorruptError when it is none."""
    try:
        return onnx.load(str(path))
    except (DecodeError, OSError) as problem:
        raise CorruptError("cannot be read as an ONNX graph", where=str(path)) from problem


def _label(graph: onnx.GraphProto, nodes: list[onnx.NodeProto], path: Path) -> Tensor:
    read = {name for node in nodes for name in node.input}
    found = [value for value in graph.input if value.name in read]
    if len(found) != 1:
        raise BundleError(
            "cannot tell which input is the label",
            where=str(path / upstream.EVALUATION),
            remedy="build the bundle with `edged artifacts build`",
        )
    return _tensor(found[0])


def _output(model: onnx.ModelProto, nodes: list[onnx.NodeProto], path: Path) -> Tensor:
    """The tensor that the network hands to the loss."""
    inner = {name for node in model.graph.node if node not in nodes for name in node.output}
    names = [name for node in nodes for name in node.input if name in inner]
    shapes = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    if not names or names[0] not in shapes:
        raise BundleError("cannot tell the model's output", where=str(path / upstream.EVALUATION))
    return _tensor(shapes[names[0]])


def _trainable(path: Path) -> set[str]:
    inputs = load_graph(path / upstream.TRAINING).graph.input
    return {value.name.removesuffix(_BUFFER) for value in inputs if value.name.endswith(_BUFFER)}


def _optimizer(path: Path) -> str:
    operators = [node.op_type for node in load_graph(path / upstream.OPTIMIZER).graph.node]
    return next((_OPTIMIZERS[name] for name in operators if name in _OPTIMIZERS), "custom")


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    integer = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
    return Tensor(str(value.name), tuple(shape_of(value)), "int64" if integer else "float32")
