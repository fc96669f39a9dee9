"""Parameters that are delivered apart from their model."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save_file

from edged.domain.bundle_contents import PARAMETERS
from edged.engines.native import checkpoint as training_checkpoint
from edged.engines.native.checkpoint import TrainingCheckpoint

Values = dict[str, NDArray[np.float32]]


def values_of(graph: onnx.GraphProto, names: Sequence[str]) -> Values:
    """Return the values of the named initializers."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    return {name: np.asarray(numpy_helper.to_array(held[name]), np.float32) for name in names}


def set_apart(checkpoint: Path | None, model: Path, held: TrainingCheckpoint) -> str:
    """Put the parameters of a nominal checkpoint and of the inference model into `parameters.safetensors`.

    Return the name of that file.

    Parameters
    ----------
    checkpoint
        File to write; None where no engine reads one.
    model
        The inference model; its parameters are taken out of it.
    held
        All parameters, with their values nevertheless.
    """
    places = _safetensors(model.with_name(PARAMETERS), held.trainable | held.frozen)
    if checkpoint is not None:
        checkpoint.write_bytes(training_checkpoint.dump(held))
    _hollow(model, PARAMETERS, places)
    return PARAMETERS


def _safetensors(file: Path, values: Values) -> dict[str, int]:
    """Write `values`, and where each begins: behind the header, whose length comes first."""
    save_file({name: np.ascontiguousarray(value) for name, value in values.items()}, file)
    with file.open("rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        header: dict[str, Any] = json.loads(content.read(length))
    return {name: 8 + length + header[name]["data_offsets"][0] for name in values}


def _hollow(path: Path, file: str, places: Mapping[str, int]) -> None:
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.name not in places:
            continue
        length = 4 * int(np.prod(tensor.dims, dtype=np.int64))
        for field in ("raw_data", "float_data", "external_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", places[tensor.name]), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString(deterministic=True))
