"""What bundles, checkpoints and directories made by upstream hold."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import DecodeError, opset_of, tensor_of
from edged.bundles.graph.external_data import values_of
from edged.bundles.source.normalise import read_model
from edged.domain.bundle_contents import FileEntry, Tensor
from edged.engines.native import checkpoint as training_checkpoint
from edged.engines.native.checkpoint import Property, TrainingCheckpoint
from edged.engines.portable.state import STATE_FILE
from edged.errors import BundleError, CorruptError
from edged.storage.models.bundles import DESCRIPTION, Bundle

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ModelContents:
    """All parameters by name, trainable ones first; which those are; what else there is.

    `checkpoint` is the file where it is one in onnxruntime's format that stands for itself.
    """

    values: dict[str, Floats]
    trainable: tuple[str, ...]
    properties: Mapping[str, Property] = field(default_factory=dict)
    moments: Mapping[str, list[Floats]] = field(default_factory=dict)
    step: int = 0
    checkpoint: Path | None = None

    def as_checkpoint(self) -> TrainingCheckpoint:
        """All of it in onnxruntime's form."""
        return TrainingCheckpoint(
            {name: value for name, value in self.values.items() if name in self.trainable},
            {name: value for name, value in self.values.items() if name not in self.trainable},
            dict(self.moments),
            self.step,
            dict(self.properties),
        )


def held_in(path: Path) -> ModelContents:
    """What is in a bundle, a directory of upstream's, a generation of checkpoints, or a checkpoint file.

    Raises BundleError or CorruptError when it is none of them, cannot be read, or is a nominal checkpoint
    without its parameters.
    """
    if (path / DESCRIPTION).is_file():
        return _of_bundle(Bundle.open(path))
    if path.is_dir() and (path / STATE_FILE).is_file():
        return _of_state(path / STATE_FILE)
    file = path / onnxruntime_generator.CHECKPOINT if path.is_dir() else path
    if not file.is_file():
        raise BundleError("is neither a bundle nor a checkpoint", where=str(path))
    found = _of_checkpoint(file)
    is_alone = not path.is_dir() or (path / onnxruntime_generator.TRAINING).is_file()
    return ModelContents(**{**vars(found), "checkpoint": file if is_alone else None})


def _of_bundle(bundle: Bundle) -> ModelContents:
    if bundle.parameters_file is not None:
        values = _tensors(bundle.parameters_file)
    elif bundle.checkpoint.is_file():
        held = _of_checkpoint(bundle.checkpoint)
        values = held.values
    else:
        graph = read_model(bundle.inference_model.with_suffix(".onnx")).graph
        there = {tensor.name for tensor in graph.initializer}
        values = values_of(graph, [n for n in (*bundle.trainable, *bundle.frozen) if n in there])
    ordered = [name for name in (*bundle.trainable, *bundle.frozen) if name in values]
    return ModelContents({name: values[name] for name in ordered}, bundle.trainable)


def _of_checkpoint(file: Path) -> ModelContents:
    found = _checkpoint(file)
    if found.nominal:
        raise BundleError("the checkpoint is nominal, its parameters are elsewhere", where=str(file))
    values = {**found.trainable, **found.frozen}
    return ModelContents(values, tuple(found.trainable), found.properties, found.moments, found.step)


def _of_state(file: Path) -> ModelContents:
    """The portable engine's state: tensors are named after what they are, `value/layer1.weight`."""
    by_kind: dict[str, dict[str, Floats]] = {}
    for name, value in _tensors(file).items():
        kind, _, parameter = name.partition("/")
        by_kind.setdefault(kind, {})[parameter] = value
    values = by_kind.pop("value", {})
    moments = {name: [kept[name] for kept in by_kind.values() if name in kept] for name in values}
    trainable = tuple(name for name in values if moments[name])
    return ModelContents(values, trainable, moments={name: moments[name] for name in trainable})


def _tensors(file: Path) -> dict[str, Floats]:
    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as problem:
        raise BundleError(f"cannot be read: {problem}", where=str(file)) from problem


# Upstream names whatever it adds like this.
_ADDED = re.compile(r"^onnx::.+::\d+$")
_LOSSES = {
    "SoftmaxCrossEntropyLoss": "cross_entropy",
    "Sigmoid": "bce_with_logits",
    "Abs": "l1",
    "Pow": "mse",
}
_OPTIMIZERS = {"AdamWOptimizer": "adamw", "SGDOptimizerV2": "sgd"}


def is_upstream(path: Path) -> bool:
    """Whether `path` holds upstream's files but no description of ours."""
    return (path / onnxruntime_generator.TRAINING).is_file() and not (path / DESCRIPTION).exists()


def describe_upstream(path: Path) -> Bundle:
    """What a `bundle.json` would say, derived from the graphs in `path`.

    Raises BundleError when a file is missing or the graphs are not of the usual form; CorruptError when a
    graph cannot be read.
    """
    missing = [name for name in onnxruntime_generator.FILES if not (path / name).is_file()]
    if missing:
        raise BundleError(f"{missing[0]} is missing", where=str(path), remedy="generate all four artifacts")
    evaluation = load_graph(path / onnxruntime_generator.EVALUATION)
    load_graph(path / onnxruntime_generator.TRAINING)  # raises where it is damaged
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
        files={name: FileEntry.of(path / name) for name in onnxruntime_generator.FILES},
        more_outputs=tuple(outputs[1:]),
    )


def adopt_upstream(path: Path, into: Path) -> tuple[Bundle, list[str]]:
    """A readable copy of the artifacts in directory `into`, and notes about what had to be changed."""
    notes = []
    for name in onnxruntime_generator.FILES:
        shutil.copyfile(path / name, into / name)
        if name.endswith(".onnx") and (old := onnxruntime_generator.make_readable(into / name)) is not None:
            notes.append(
                f"{name} has IR version {old}, this runtime reads up to"
                f" {onnxruntime_generator.MAX_IR_VERSION}"
            )
    return describe_upstream(into), notes


def load_graph(path: Path) -> onnx.ModelProto:
    """The ONNX file at `path`; CorruptError when it is none."""
    try:
        return onnx.load(str(path))
    except (DecodeError, OSError) as problem:
        raise CorruptError("cannot be read as an ONNX graph", where=str(path)) from problem


def _checkpoint(path: Path) -> TrainingCheckpoint:
    try:
        return training_checkpoint.read(path)
    except (OSError, training_checkpoint.FormatError) as problem:
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
    return tensor_of(given[0]), tensor_of(labels[0])


def _outputs(model: onnx.ModelProto, nodes: list[onnx.NodeProto], path: Path) -> list[Tensor]:
    """The tensors that the network hands to the loss, in its order."""
    inner = {name for node in model.graph.node if node not in nodes for name in node.output}
    names = list(dict.fromkeys(name for node in nodes for name in node.input if name in inner))
    shapes = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    if not names or any(name not in shapes for name in names):
        raise BundleError(
            "cannot tell the model's output", where=str(path / onnxruntime_generator.EVALUATION)
        )
    return [tensor_of(shapes[name]) for name in names]


def _optimizer(path: Path) -> str:
    operators = [node.op_type for node in load_graph(path / onnxruntime_generator.OPTIMIZER).graph.node]
    return next((_OPTIMIZERS[name] for name in operators if name in _OPTIMIZERS), "custom")
