"""Models that keep values in other files: reading ONNX's external data, and putting parameters apart."""

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
from onnx.external_data_helper import load_external_data_for_tensor
from safetensors.numpy import save_file

from edged.domain.bundle_contents import PARAMETERS
from edged.engines.native import checkpoint as training_checkpoint
from edged.engines.native.checkpoint import TrainingCheckpoint
from edged.errors import BundleError

Values = dict[str, NDArray[np.float32]]

EXTERNAL = onnx.TensorProto.EXTERNAL
# Bytes of values that one message has room for, with what else is in it.
MOST = 1_800_000_000


def load(path: Path) -> onnx.ModelProto:
    """Return the model in a file, with the values that it keeps in others.

    Raises BundleError when such a file is missing, too short, or in another directory, or the values are more
    than one message holds; OSError or ValueError and what else `onnx.load` raises for what is no model.
    """
    model = onnx.load(str(path), load_external_data=False)
    folder = path.parent.resolve()
    outside = [tensor for tensor in model.graph.initializer if tensor.data_location == EXTERNAL]
    for tensor in outside:
        _check(tensor, folder, path)
    if (total := sum(_bytes(tensor) for tensor in outside)) > MOST:
        raise BundleError(
            f"the model has {total:,} bytes of values, {MOST:,} can be built from",
            where=str(path),
            remedy="use a smaller model",
        )
    for tensor in outside:
        load_external_data_for_tensor(tensor, str(folder))
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    return model


def _check(tensor: onnx.TensorProto, folder: Path, model: Path) -> None:
    location = {entry.key: entry.value for entry in tensor.external_data}
    file = (folder / location.get("location", "")).resolve()
    if not file.is_relative_to(folder) or file == folder:
        raise BundleError(
            f"{tensor.name} has its values in {location.get('location')!r}, outside of the model's directory",
            where=str(model),
            remedy="move the file beside the model, and export again with a plain name",
        )
    if not file.is_file():
        raise BundleError(f"the values of {tensor.name} are missing", where=str(file))
    start, size = int(location.get("offset", 0)), file.stat().st_size
    length = int(location.get("length", size - start))
    if not 0 <= start <= start + length <= size or length < _bytes(tensor):
        raise BundleError(f"is too short for {tensor.name}", where=str(file), remedy="copy it again")


def _bytes(tensor: onnx.TensorProto) -> int:
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(np.prod(tensor.dims, dtype=np.int64)) * int(kind.itemsize)


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
        tensor.data_location = EXTERNAL
        for key, value in (("location", file), ("offset", places[tensor.name]), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString(deterministic=True))
