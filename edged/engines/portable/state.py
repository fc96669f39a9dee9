"""The portable engine's state as files, and its exchange with the native engine's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edged.engines.native import checkpoint
from edged.engines.native.checkpoint import TrainingCheckpoint
from edged.errors import CorruptError

if TYPE_CHECKING:
    from edged.engines.portable.description import Description

STATE_FILE = "state.safetensors"
NATIVE_FILE = "checkpoint"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SavedState:
    """Parameters by name; moments by kind and name, as the step graph keeps them; updates so far."""

    parameters: dict[str, Floats]
    moments: dict[str, dict[str, Floats]]
    updates: int
    properties: dict[str, int | float | str] = field(default_factory=dict)


def write(directory: Path, saved: SavedState, description: Description, *, native: bool) -> None:
    """Write `state.safetensors`; with `native` also a checkpoint for the native engine."""
    tensors = {f"value/{name}": value for name, value in saved.parameters.items()}
    for kind, values in saved.moments.items():
        tensors |= {f"{kind}/{name}": value for name, value in values.items()}
    (directory / STATE_FILE).write_bytes(save(tensors))
    if native:
        (directory / NATIVE_FILE).write_bytes(checkpoint.dump(_to_native(saved, description)))


def read(directory: Path, description: Description, updates: int) -> SavedState:
    """The state in `directory`, of either engine, checked against what the step graph takes.

    Raises CorruptError when a file is missing or cannot be read, or a tensor does not fit.
    """
    own = directory / STATE_FILE
    if own.exists():
        return _fitting(_own(own, description, updates), description, own)
    return _fitting(_from_native(directory / NATIVE_FILE, description), description, directory / NATIVE_FILE)


def _own(path: Path, description: Description, updates: int) -> SavedState:
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError) as problem:
        raise CorruptError("is missing or damaged", where=str(path)) from problem
    by_kind: dict[str, dict[str, Floats]] = {kind: {} for kind in description.optimizer.kinds}
    for name, value in tensors.items():
        kind, _, parameter = name.partition("/")
        by_kind.setdefault(kind, {})[parameter] = value
    return SavedState(by_kind.pop("value"), by_kind, updates)


def _from_native(path: Path, description: Description) -> SavedState:
    try:
        found = checkpoint.read(path)
    except OSError as problem:
        raise CorruptError("is missing or damaged", where=str(path)) from problem
    except checkpoint.FormatError as problem:
        raise CorruptError(f"is damaged: {problem}", where=str(path)) from problem
    moments: dict[str, dict[str, Floats]] = {}
    for i, (kind, factor) in enumerate(
        zip(description.optimizer.kinds[1:], description.optimizer.factors(found.step), strict=True)
    ):
        moments[kind] = {
            name: (kept[i] / factor).astype(np.float32)
            for name, kept in found.moments.items()
            if i < len(kept)
        }
        if not found.moments:
            # A checkpoint without optimizer state, such as the bundle's: nothing has moved yet.
            moments[kind] = {
                name: np.zeros(place.shape, np.float32) for name, place in description.places.items()
            }
    return SavedState(found.trainable | found.frozen, moments, found.step)


def _fitting(saved: SavedState, description: Description, where: Path) -> SavedState:
    _check(saved.parameters, description.shapes, where)
    places = {name: place.shape for name, place in description.places.items()}
    for kind in description.optimizer.kinds[1:]:
        _check(saved.moments.get(kind, {}), places, where)
    return saved


def _check(values: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    if values.keys() != shapes.keys() or any(values[name].shape != shape for name, shape in shapes.items()):
        raise CorruptError("holds the state of another model or optimizer", where=str(where))


def _to_native(saved: SavedState, description: Description) -> TrainingCheckpoint:
    kept = list(zip(saved.moments.values(), description.optimizer.factors(saved.updates), strict=True))
    return TrainingCheckpoint(
        trainable={name: saved.parameters[name] for name in description.places},
        frozen={one.name: saved.parameters[one.name] for one in description.frozen},
        moments={
            name: [np.asarray(values[name] * np.float32(factor)) for values, factor in kept]
            or [np.zeros(place.shape, np.float32)]  # SGD has one moment there, which it does not use
            for name, place in description.places.items()
        },
        step=saved.updates,
        properties=saved.properties,
    )
