"""Parameters in a file of their own, to which the inference model and the checkpoint refer.

So are those of a nominal checkpoint, which are delivered apart: `parameters.safetensors`. And those that are
too many for one message: a FlatBuffer and a protobuf message end at 2 GiB. They go to `checkpoint.data`,
where onnxruntime looks for them by itself.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

from edged.bundles.graph.external_data import EXTERNAL, array_of, is_elsewhere
from edged.engines.native import checkpoint as training_checkpoint
from edged.storage.models.bundles import CHECKPOINT_DATA, PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.engines.native.checkpoint import TrainingCheckpoint

    Values = dict[str, NDArray[np.float32]]

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
        told: dict[str, Any] = json.loads(content.read(length))
    return {name: 8 + length + told[name]["data_offsets"][0] for name in values}


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
