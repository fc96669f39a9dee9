"""What bundles and checkpoints hold, whatever form they have: parameters, properties, optimizer state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.external_data import values_of
from edged.bundles.source.normalise import read_model
from edged.engines.native import checkpoint as training_checkpoint
from edged.engines.native.checkpoint import TrainingCheckpoint
from edged.engines.portable.state import STATE_FILE
from edged.errors import BundleError
from edged.storage.models.bundles import DESCRIPTION, Bundle

if TYPE_CHECKING:
    from edged.engines.native.checkpoint import Property

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
    in_two = file.with_name(file.name + training_checkpoint.DATA).is_file()
    return ModelContents(**{**vars(found), "checkpoint": file if is_alone and not in_two else None})


def _of_bundle(bundle: Bundle) -> ModelContents:
    properties = bundle.properties
    if bundle.parameters_file is not None:
        values = _tensors(bundle.parameters_file)
    elif bundle.checkpoint.is_file():
        held = _of_checkpoint(bundle.checkpoint)
        values, properties = held.values, held.properties
    else:
        graph = read_model(bundle.inference_model.with_suffix(".onnx")).graph
        there = {tensor.name for tensor in graph.initializer}
        values = values_of(graph, [n for n in (*bundle.trainable, *bundle.frozen) if n in there])
    ordered = [name for name in (*bundle.trainable, *bundle.frozen) if name in values]
    return ModelContents({name: values[name] for name in ordered}, bundle.trainable, properties)


def _of_checkpoint(file: Path) -> ModelContents:
    try:
        found = training_checkpoint.read(file)
    except (OSError, training_checkpoint.FormatError) as problem:
        raise BundleError(f"the checkpoint cannot be read: {problem}", where=str(file)) from problem
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
