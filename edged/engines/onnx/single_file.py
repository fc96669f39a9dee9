"""A model whose parameters lie in a file beside it, as one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain import protobuf
from edged.engines.onnx.fields import EXTERNAL, GRAPH, INITIALIZER, KEY, LOCATION, NAME, RAW, VALUE
from edged.errors import BundleError, CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protobuf import Field

    Values = Mapping[str, NDArray[np.float32]]

# Bytes of the largest message that protobuf reads.
LARGEST = (1 << 31) - 1


def whole_model(path: Path, instead: Mapping[str, NDArray[np.float32]] | None = None) -> bytes:
    """The model at `path` with the values of its external tensors in it; needs no `onnx`.

    Those that are named in `instead` get these values. What is no model stays as it is: whoever loads it says
    so.

    Raises BundleError when a file is missing or cannot be read; CorruptError when the model names a file
    elsewhere, or places that are not there.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise BundleError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
    try:
        return b"".join(_model(content, path, instead or {}))
    except (ValueError, KeyError, IndexError):
        return content


def _model(content: bytes, path: Path, instead: Values) -> Iterator[bytes]:
    for field in protobuf.fields(content, 0, len(content)):
        if field.number != GRAPH:
            yield content[field.start : field.last]
            continue
        graph = b"".join(_graph(content, field, path, instead))
        yield protobuf.message(GRAPH, len(graph))
        yield graph


def _graph(content: bytes, graph: Field, path: Path, instead: Values) -> Iterator[bytes]:
    for field in protobuf.within(content, graph):
        entries = _entries(content, field) if field.number == INITIALIZER else {}
        if not entries:
            yield content[field.start : field.last]
            continue
        given = instead.get(_name(content, field))
        values = _values(entries, path) if given is None else given.astype("<f4").tobytes()
        tensor = b"".join(_tensor(content, field, values))
        yield protobuf.message(INITIALIZER, len(tensor))
        yield tensor


def _tensor(content: bytes, tensor: Field, values: bytes) -> Iterator[bytes]:
    """The fields of a tensor in the order of their numbers, its values among them."""
    kept = [field for field in protobuf.within(content, tensor) if field.number not in (EXTERNAL, LOCATION)]
    for field in (field for field in kept if field.number < RAW):
        yield content[field.start : field.last]
    yield protobuf.message(RAW, len(values))
    yield values
    for field in (field for field in kept if field.number > RAW):
        yield content[field.start : field.last]


def _name(content: bytes, tensor: Field) -> str:
    found = (field for field in protobuf.within(content, tensor) if field.number == NAME)
    return next((protobuf.text(content, field) for field in found), "")


def _entries(content: bytes, tensor: Field) -> dict[str, str]:
    """What a tensor says of where its values are; nothing when it has them."""
    found = {}
    for field in protobuf.within(content, tensor):
        if field.number == EXTERNAL:
            pair = {inner.number: protobuf.text(content, inner) for inner in protobuf.within(content, field)}
            found[pair[KEY]] = pair[VALUE]
    return found


def _values(entries: dict[str, str], path: Path) -> bytes:
    try:
        name, start, length = entries["location"], int(entries.get("offset", 0)), int(entries["length"])
    except (KeyError, ValueError) as problem:
        raise CorruptError("does not say where its values are", where=str(path)) from problem
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise CorruptError(f"keeps values in {name!r}, which is no file beside it", where=str(path))
    file = path.with_name(name)
    try:
        if not 0 <= start <= start + length <= file.stat().st_size:
            raise CorruptError("is shorter than the model says", where=str(file))
        return np.fromfile(file, np.uint8, length, offset=start).tobytes()
    except OSError as problem:
        raise BundleError(
            f"the parameters of the model cannot be read: {problem.strerror}",
            where=str(file),
            remedy="put the file that the bundle was built with beside it",
        ) from problem
