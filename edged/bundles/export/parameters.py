"""Single parameters of a bundle: looked at, taken out, put in. So too of checkpoints."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.bundles.graph.external_data import set_apart
from edged.bundles.inspect import Parameter
from edged.bundles.source.contents import ModelContents, held_in
from edged.domain.training.message import Message
from edged.engines.native import checkpoint as training_checkpoint
from edged.engines.native.checkpoint import Property, TrainingCheckpoint
from edged.engines.onnx.fields import write_parameters
from edged.errors import ConfigError
from edged.storage.files.atomic import disk_errors, publish_file, staging_path
from edged.storage.models.bundles import DESCRIPTION, Bundle, publish, seal

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ParameterFigures(Parameter):
    """A parameter with the smallest, largest and mean of its values, and their standard deviation."""

    min: float
    max: float
    mean: float
    std: float


@dataclass(frozen=True)
class ParametersReport(Message):
    """What a bundle or checkpoint holds: parameters, and the properties by name that a user gave it.

    `optimizer_state` is whether moments are there, `step` the number of updates that they are from.
    """

    parameters: tuple[ParameterFigures, ...]
    properties: Mapping[str, Property]
    optimizer_state: bool
    step: int


def describe(path: Path) -> ParametersReport:
    """Describe the parameters of a bundle or checkpoint.

    Parameters
    ----------
    path
        A bundle, a directory that upstream's `generate_artifacts` made, a generation of a device's
        checkpoints, or a file in onnxruntime's format.

    Raises
    ------
    BundleError, CorruptError
        When it cannot be read.
    """
    held = held_in(path)
    figures = tuple(
        ParameterFigures(
            name, value.shape, value.size, name in held.trainable,
            float(value.min()), float(value.max()), float(value.mean()), float(value.std()),
        )
        for name, value in held.values.items()
    )  # fmt: skip
    return ParametersReport(figures, held.properties, bool(held.moments), held.step)


def get(path: Path, name: str) -> Floats:
    """The value of a parameter; ConfigError when there is none of this name."""
    held = held_in(path)
    if name not in held.values:
        raise _unknown(name, held)
    return held.values[name]


def write_parameter(bundle: Path, name: str, out: Path | None) -> None:
    """Write one parameter of a bundle to the file `out` in numpy's format.

    Raises ConfigError without a file, or when there is no such parameter.
    """
    if out is None:
        raise ConfigError("a file is missing", where="-o", remedy="such as -o weight.npy")
    held = io.BytesIO()
    np.save(held, get(bundle, name), allow_pickle=False)
    publish_file(out, held.getvalue())


def read_parameters(assignments: Sequence[str]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The arrays of `NAME=FILE.npy` by name; ConfigError when that cannot be read."""
    values = {}
    for assignment in assignments:
        name, equals, file = assignment.rpartition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} is no NAME=FILE.npy", where="--set")
        try:
            values[name] = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as problem:
            raise ConfigError(f"cannot be read: {problem}", where=file) from problem
    return values


def put(path: Path, values: Mapping[str, NDArray[Any]]) -> None:
    """Change parameters of a bundle, or of a checkpoint in onnxruntime's format.

    A bundle is published again, its fingerprint another. Checkpoint and inference model are changed alike, so
    every engine begins with the new values.

    Raises ConfigError when a parameter is not known, has another shape, or a number is not finite, or it is a
    generation of checkpoints, whose hashes would no longer fit;
    BundleError, CorruptError or StorageError when it cannot be read or written; what was there stays.
    """
    held = held_in(path)
    ready = {name: _fitting(name, value, held) for name, value in values.items()}
    changed = replace(held, values=held.values | ready)
    if (path / DESCRIPTION).is_file():
        _put_bundle(Bundle.open(path), changed, ready)
    elif held.checkpoint is not None:
        publish_file(held.checkpoint, training_checkpoint.dump(changed.as_checkpoint()))
    else:
        raise ConfigError("a generation of checkpoints stays as it is", where=str(path),
                          remedy="change the bundle, or a checkpoint in onnxruntime's format")  # fmt: skip


def _put_bundle(bundle: Bundle, changed: ModelContents, ready: Mapping[str, Floats]) -> None:
    path = bundle.path
    staged = staging_path(path.resolve().parent, path.name)
    try:
        with disk_errors("changing the bundle", path):
            staged.mkdir()
            for name in bundle.files:
                shutil.copyfile(path / name, staged / name)
            moved = replace(bundle, path=staged)
            _change(moved, changed.as_checkpoint(), ready)
        seal(moved, bundle.files)
        publish(staged, path)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _change(bundle: Bundle, held: TrainingCheckpoint, ready: Mapping[str, Floats]) -> None:
    checkpoint = bundle.checkpoint if bundle.checkpoint.is_file() else None
    if bundle.parameters_file is not None:
        set_apart(checkpoint, bundle.inference_model, replace(held, nominal=True))
        return
    if checkpoint is not None:
        checkpoint.write_bytes(training_checkpoint.dump(held))
    content = bytearray(bundle.inference_model.read_bytes())
    write_parameters(content, ready)
    bundle.inference_model.write_bytes(content)


def _fitting(name: str, value: NDArray[Any], held: ModelContents) -> Floats:
    if name not in held.values:
        raise _unknown(name, held)
    known = held.values[name]
    if value.shape != known.shape:
        raise ConfigError(f"has shape {list(value.shape)}, the model takes {list(known.shape)}", where=name)
    made = np.asarray(value, np.float32)
    if not np.isfinite(made).all():
        raise ConfigError("holds a number that is not finite", where=name)
    return made


def _unknown(name: str, held: ModelContents) -> ConfigError:
    listed = ", ".join(held.values)
    return ConfigError("there is no such parameter", where=name, remedy=f"parameters: {listed}")
