"""Models that keep values in other files: ONNX's external data, taken from the model's own directory only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_tensor

from edged.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

EXTERNAL = onnx.TensorProto.EXTERNAL
# Bytes from which on a parameter is large; constants, indices and biases are smaller.
LARGE = 1 << 20


def load(path: Path, most: int) -> onnx.ModelProto:
    """The model in a file, with the values that it keeps in others.

    Where they are larger than `most` bytes together, large parameters stay there, for `array_of` to read.

    Raises
    ------
    BundleError
        When such a file is missing, too short, or in another directory.
    OSError, ValueError
        And what else `onnx.load` raises for what is no model.
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
    told = {entry.key: entry.value for entry in tensor.external_data}
    start, shape = int(told.get("offset", 0)), tuple(tensor.dims)
    return np.memmap(told["location"], "<f4", "r", offset=start, shape=shape)


def _check(tensor: onnx.TensorProto, folder: Path, model: Path) -> None:
    told = {entry.key: entry.value for entry in tensor.external_data}
    file = (folder / told.get("location", "")).resolve()
    if not file.is_relative_to(folder) or file == folder:
        raise BundleError(
            f"{tensor.name} has its values in {told.get('location')!r}, outside of the model's directory",
            where=str(model),
            remedy="move the file beside the model, and export again with a plain name",
        )
    if not file.is_file():
        raise BundleError(f"the values of {tensor.name} are missing", where=str(file))
    start, size = int(told.get("offset", 0)), file.stat().st_size
    length = int(told.get("length", size - start))
    if not 0 <= start <= start + length <= size or length < _bytes(tensor):
        raise BundleError(f"is too short for {tensor.name}", where=str(file), remedy="copy it again")


def _bytes(tensor: onnx.TensorProto) -> int:
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(np.prod(tensor.dims, dtype=np.int64)) * int(kind.itemsize)
