"""Models that keep values in other files: reading ONNX's external data, and putting parameters apart."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor
from safetensors.numpy import save_file

from edged.domain.bundle_contents import CHECKPOINT_DATA, PARAMETERS
from edged.engines.native import checkpoint as training_checkpoint
from edged.errors import BundleError

if TYPE_CHECKING:
    from edged.engines.native.checkpoint import TrainingCheckpoint

    Values = dict[str, NDArray[np.float32]]

EXTERNAL = onnx.TensorProto.EXTERNAL
# Bytes from which on a parameter is large; constants, indices and biases are smaller.
LARGE = 1 << 20


def load(path: Path, most: int) -> onnx.ModelProto:
    """The model in a file, with the values that it keeps in others.

    Where they are larger than `most` bytes together, large parameters stay there, for `array_of` to read.

    Raises BundleError when such a file is missing, too short, or in another directory; OSError or ValueError
    and what else `onnx.load` raises for what is no model.
    """
    model = onnx.load(str(path), load_external_data=False)
    folder = path.parent.resolve()
    outside = [tensor for tensor in model.graph.initializer if is_elsewhere(tensor)]
    for tensor in outside:
        _check(tensor, folder, path)
    total = sum(_bytes(tensor) for tensor in outside)
    for tensor in outside:
        if total > most and tensor.data_type == onnx.TensorProto.FLOAT and _bytes(tensor) >= LARGE:
            place = next(entry for entry in tensor.external_data if entry.key == "location")
            place.value = str(folder / place.value)
        else:
            load_external_data_for_tensor(tensor, str(folder))
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
    return model


def is_elsewhere(tensor: onnx.TensorProto) -> bool:
    """Whether the values are in another file: nothing is made of them then but a parameter."""
    return bool(tensor.data_location == EXTERNAL)


def array_of(tensor: onnx.TensorProto) -> NDArray[np.float32]:
    """The values of a float32 tensor that `load` has left in its file; read as they are used."""
    location = {entry.key: entry.value for entry in tensor.external_data}
    start, shape = int(location.get("offset", 0)), tuple(tensor.dims)
    return np.memmap(location["location"], "<f4", "r", offset=start, shape=shape)


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


# Bytes of parameters that one message has room for, with what else is in it.
MOST = 1_800_000_000
_ALIGNED = 64


def size_of(graph: onnx.GraphProto, names: Iterable[str]) -> int:
    """Bytes of the named float32 initializers."""
    wanted = set(names)
    return sum(4 * int(np.prod(t.dims, dtype=np.int64)) for t in graph.initializer if t.name in wanted)


def values_of(graph: onnx.GraphProto, names: Sequence[str]) -> Values:
    """The named initializers; those that lie in another file are read as they are used."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    return {name: _array(held[name]) for name in names}


def _array(tensor: onnx.TensorProto) -> NDArray[np.float32]:
    if is_elsewhere(tensor):
        return array_of(tensor)
    return np.asarray(numpy_helper.to_array(tensor), np.float32)


def set_apart(checkpoint: Path | None, model: Path, held: TrainingCheckpoint) -> str:
    """Put the parameters of checkpoint and inference model into a file beside them; its name.

    Those of a nominal checkpoint, which are delivered apart, go to `parameters.safetensors`; those that are
    too many for one message (a FlatBuffer and a protobuf message end at 2 GiB) to `checkpoint.data`, where
    onnxruntime looks for them by itself.

    Parameters
    ----------
    checkpoint
        File to write; None where no engine reads one.
    model
        The inference model; its parameters are taken out of it.
    held
        All parameters; a nominal one with their values nevertheless.
    """
    values = held.trainable | held.frozen
    write, name = (_safetensors, PARAMETERS) if held.nominal else (_one_by_one, CHECKPOINT_DATA)
    places = write(model.with_name(name), values)
    if checkpoint is not None:
        checkpoint.write_bytes(training_checkpoint.dump(held, None if held.nominal else places))
    _hollow(model, name, places)
    return name


def _safetensors(file: Path, values: Values) -> dict[str, int]:
    """Write `values`, and where each begins: behind the header, whose length comes first."""
    save_file({name: np.ascontiguousarray(value) for name, value in values.items()}, file)
    with file.open("rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        header: dict[str, Any] = json.loads(content.read(length))
    return {name: 8 + length + header[name]["data_offsets"][0] for name in values}


def _one_by_one(file: Path, values: Values) -> dict[str, int]:
    places = {}
    with file.open("wb") as content:
        for name, value in values.items():
            content.write(bytes(-content.tell() % _ALIGNED))
            places[name] = content.tell()
            np.ascontiguousarray(value, "<f4").tofile(content)
    return places


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
