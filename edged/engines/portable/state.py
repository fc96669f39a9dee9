"""The portable engine's state as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edged.errors import CorruptError

if TYPE_CHECKING:
    from edged.engines.portable.description import Description

STATE_FILE = "state.safetensors"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SavedState:
    """Parameters by name; moments by kind and name, as the step graph keeps them."""

    parameters: dict[str, Floats]
    moments: dict[str, dict[str, Floats]]


def write(directory: Path, saved: SavedState) -> None:
    """Write `state.safetensors`; OSError when that fails."""
    tensors = {f"value/{name}": value for name, value in saved.parameters.items()}
    for kind, values in saved.moments.items():
        tensors |= {f"{kind}/{name}": value for name, value in values.items()}
    (directory / STATE_FILE).write_bytes(save(tensors))


def read(directory: Path, description: Description) -> SavedState:
    """The state in `directory`, checked against what the step graph takes.

    Raises CorruptError when the file is missing or cannot be read, or a tensor does not fit.
    """
    path = directory / STATE_FILE
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError) as problem:
        raise CorruptError("is missing or damaged", where=str(path)) from problem
    by_kind: dict[str, dict[str, Floats]] = {kind: {} for kind in description.optimizer.kinds}
    for name, value in tensors.items():
        kind, _, parameter = name.partition("/")
        by_kind.setdefault(kind, {})[parameter] = value
    saved = SavedState(by_kind.pop("value"), by_kind)
    _check(saved.parameters, description.shapes, path)
    places = {name: place.shape for name, place in description.places.items()}
    for kind in description.optimizer.kinds[1:]:
        _check(saved.moments[kind], places, path)
    return saved


def _check(values: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    if values.keys() != shapes.keys() or any(values[name].shape != shape for name, shape in shapes.items()):
        raise CorruptError("holds the state of another model or optimizer", where=str(where))
