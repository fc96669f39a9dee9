"""Directories made by upstream's `generate_artifacts`, which carry no description: read from the graphs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import DecodeError, opset_of, shape_of
from edged.domain.bundle_contents import CHECKPOINT_DATA
from edged.engines.native import checkpoint
from edged.errors import BundleError, CorruptError
from edged.storage.models.bundles import DESCRIPTION, Bundle, FileEntry, Tensor

if TYPE_CHECKING:
    from edged.engines.native.checkpoint import TrainingCheckpoint

FILES = (
    onnxruntime_generator.TRAINING,
    onnxruntime_generator.EVALUATION,
    onnxruntime_generator.OPTIMIZER,
    onnxruntime_generator.CHECKPOINT,
)

# Upstream names whatever it adds like this.
_ADDED = re.compile(r"^onnx::.+::\d+$")
_LOSSES = {
    "SoftmaxCrossEntropyLoss": "cross_entropy",
    "Sigmoid": "bce_with_logits",
    "Abs": "l1",
    "Pow": "mse",
}
_OPTIMIZERS = {"AdamWOptimizer": "adamw", "SGDOptimizerV2": "sgd"}


def is_foreign(path: Path) -> bool:
    """Whether `path` holds upstream's files but no description of ours."""
    return (path / onnxruntime_generator.TRAINING).is_file() and not (path / DESCRIPTION).exists()


def describe(path: Path) -> Bundle:
    """What a `bundle.json` would say, derived from the graphs in `path`.

    Raises BundleError when a file is missing or the graphs are not of the usual form; CorruptError when a
    graph cannot be read.
    """
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing:
        raise BundleError(f"{missing[0]} is missing", where=str(path), remedy="generate all four artifacts")
    evaluation, _ = (
        load_graph(path / name) for name in (onnxruntime_generator.EVALUATION, onnxruntime_generator.TRAINING)
    )
    held = _checkpoint(path / onnxruntime_generator.CHECKPOINT)
    nodes = [node for node in evaluation.graph.node if _ADDED.match(node.output[0])]
    data, label = _inputs(evaluation.graph, nodes, {*held.trainable, *held.frozen}, path)
    outputs = _outputs(evaluation, nodes, path)
    return Bundle(
        path=path,
        edged="",
        loss=next((_LOSSES[node.op_type] for node in nodes if node.op_type in _LOSSES), "custom"),
        optimizer=_optimizer(path),
        input=data,
        output=outputs[0],
        label=label,
        trainable=tuple(held.trainable),
        frozen=tuple(held.frozen),
        opset=opset_of(evaluation),
        engine="native",
        files={name: FileEntry.of(path / name) for name in _files(path)},
        more_outputs=tuple(outputs[1:]),
        properties=held.properties,
    )


def adopt(path: Path, into: Path) -> tuple[Bundle, list[str]]:
    """A readable copy of the artifacts in directory `into`, and notes about what had to be changed."""
    notes = []
    for name in _files(path):
        shutil.copyfile(path / name, into / name)
        if name.endswith(".onnx") and (old := onnxruntime_generator.make_readable(into / name)) is not None:
            notes.append(
                f"{name} has IR version {old}, this runtime reads up to"
                f" {onnxruntime_generator.MAX_IR_VERSION}"
            )
    return describe(into), notes


def load_graph(path: Path) -> onnx.ModelProto:
    """The ONNX file at `path`; CorruptError when it is none."""
    try:
        return onnx.load(str(path))
    except (DecodeError, OSError) as problem:
        raise CorruptError("cannot be read as an ONNX graph", where=str(path)) from problem


def _files(path: Path) -> list[str]:
    """Its files; a checkpoint above 2 GB is two."""
    return [*FILES, *(name for name in (CHECKPOINT_DATA,) if (path / name).is_file())]


def _checkpoint(path: Path) -> TrainingCheckpoint:
    try:
        return checkpoint.read(path)
    except (OSError, checkpoint.FormatError) as problem:
        raise CorruptError(f"the checkpoint cannot be read: {problem}", where=str(path)) from problem


def _inputs(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto], parameters: set[str], path: Path
) -> tuple[Tensor, Tensor]:
    """The model's input, and the label: what only the loss reads."""
    by_loss = {name for node in nodes for name in node.input}
    by_network = {name for node in graph.node if node not in nodes for name in node.input}
    given = [value for value in graph.input if value.name not in parameters]
    labels = [value for value in given if value.name in by_loss - by_network]
    if len(labels) != 1:
        raise BundleError(
            "several inputs are labels" if labels else "cannot tell which input is the label",
            where=str(path / onnxruntime_generator.EVALUATION),
            remedy="build the bundle with `edged artifacts build`",
        )
    if len(given) != 2 or given[0] in labels:
        raise BundleError(
            "the model must have exactly one input", where=str(path / onnxruntime_generator.EVALUATION)
        )
    return _tensor(given[0]), _tensor(labels[0])


def _outputs(model: onnx.ModelProto, nodes: list[onnx.NodeProto], path: Path) -> list[Tensor]:
    """The tensors that the network hands to the loss, in its order."""
    inner = {name for node in model.graph.node if node not in nodes for name in node.output}
    names = list(dict.fromkeys(name for node in nodes for name in node.input if name in inner))
    shapes = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    if not names or any(name not in shapes for name in names):
        raise BundleError(
            "cannot tell the model's output", where=str(path / onnxruntime_generator.EVALUATION)
        )
    return [_tensor(shapes[name]) for name in names]


def _optimizer(path: Path) -> str:
    operators = [node.op_type for node in load_graph(path / onnxruntime_generator.OPTIMIZER).graph.node]
    return next((_OPTIMIZERS[name] for name in operators if name in _OPTIMIZERS), "custom")


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    integer = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
    return Tensor(str(value.name), tuple(shape_of(value)), "int64" if integer else "float32")
