"""The parameters in an exported model, whichever engine or framework wrote it, read without the package onnx.

A device has no such package. Of a model file only the initializers are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.protobuf import numbers, text, value, within
from edged.engines.onnx import fields
from edged.errors import CorruptError, ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protobuf import Field

# By number of data type: how elements are stored, and the field that holds them where `raw_data` does not.
STORED = {1: ("<f4", fields.FLOATS), 10: ("<f2", fields.INTEGERS), 11: ("<f8", fields.DOUBLES)}


def parameters_in(path: Path, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """The named parameters as they are in a model file.

    Raises ModelError when one of them is not in it.
    """
    wanted = tuple(names)
    found = parameters_within(path.read_bytes(), wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelError(f"it has no parameter {missing[0]!r}", where=str(path), remedy="train from: bundle")
    return found


def parameters_within(content: bytes, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """Those of the named parameters that a serialised model holds, as float32.

    Raises CorruptError when it is no ONNX model, or keeps its weights in another file, or in another form
    than floats.
    """
    wanted = set(names)
    try:
        return dict(_parameters(content, wanted))
    except (ValueError, OverflowError) as problem:  # OverflowError: a number that is no half
        raise CorruptError(f"is no ONNX model: {problem}", where="model") from None


def _parameters(model: bytes, wanted: set[str]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    if not any(True for _ in fields.graphs(model)):
        raise ValueError("it has no graph")
    for tensor in fields.initializers(model):
        held: dict[int, list[Field]] = {}
        for field in within(model, tensor):
            held.setdefault(field.number, []).append(field)
        name = text(model, held[fields.NAME][-1]) if fields.NAME in held else ""
        if name in wanted:
            yield name, _values(model, name, held)


def _values(model: bytes, name: str, held: dict[int, list[Field]]) -> NDArray[np.float32]:
    """The values of a tensor in its shape."""
    shape = [size for field in held.get(fields.DIMS, []) for size in numbers(model, field)]
    kind = next(numbers(model, held[fields.DATA_TYPE][-1]), 0) if fields.DATA_TYPE in held else 0
    if fields.EXTERNAL in held:
        raise ValueError(f"{name!r} is in another file")
    if kind not in STORED:
        raise ValueError(f"{name!r} has data type {kind}, not float, float16 or double")
    form, typed = STORED[kind]
    parts = held.get(typed, [])
    if fields.RAW in held:
        stored = np.frombuffer(value(model, held[fields.RAW][-1]), form)
    elif typed == fields.INTEGERS:
        halves = [half for field in parts for half in numbers(model, field)]
        stored = np.array(halves, np.uint16).view(form)
    else:
        stored = np.frombuffer(b"".join(value(model, field) for field in parts), form)
    if math.prod(shape) != stored.size:  # a negative size is a huge one here
        raise ValueError(f"{name!r} has {stored.size} values for the shape {shape}")
    return stored.reshape(shape).astype(np.float32)
