"""ONNX files as bytes: their fields, parameters and values in other files, without the package onnx."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain import protobuf
from edged.domain.protobuf import Field, fields, numbers, text, value, within
from edged.errors import BundleError, CorruptError, ModelError

Values = Mapping[str, NDArray[np.float32]]


# ModelProto.graph; GraphProto.initializer and .input; ValueInfoProto.name.
GRAPH, INITIALIZER, INPUT, VALUE_NAME = 7, 5, 11, 1
# TensorProto; of external_data StringStringEntryProto.key and .value.
DIMS, DATA_TYPE, FLOATS, INTEGERS, NAME, RAW, DOUBLES, EXTERNAL, LOCATION = 1, 2, 4, 5, 8, 9, 10, 13, 14
KEY, VALUE = 1, 2


def write_parameters(content: bytearray, values: Values) -> None:
    """Put float32 values in the place of the raw data of these initializers of a serialised model.

    Raises CorruptError when one of them has another length there.
    """
    model = bytes(content)
    for tensor in initializers(model):
        inner = {field.number: field for field in within(model, tensor)}
        name = text(model, inner[NAME]) if NAME in inner and RAW in inner else ""
        if name in values:
            place, raw = inner[RAW], values[name].astype("<f4").tobytes()
            if len(raw) != place.last - place.first:
                raise CorruptError(f"{name} has another size in the model", where="model")
            content[place.first : place.last] = raw


def initializers(content: bytes) -> Iterator[Field]:
    """The initializers of a serialised model."""
    return _of_graph(content, INITIALIZER)


def input_names(content: bytes) -> list[str]:
    """Names of the inputs of a serialised model, in their order."""
    values = _of_graph(content, INPUT)
    return [
        text(content, field)
        for value in values
        for field in within(content, value)
        if field.number == VALUE_NAME
    ]


def graphs(content: bytes) -> Iterator[Field]:
    """The graph of a serialised model; said in parts, each of them."""
    return (field for field in fields(content, 0, len(content)) if field.number == GRAPH)


def _of_graph(content: bytes, number: int) -> Iterator[Field]:
    return (field for graph in graphs(content) for field in within(content, graph) if field.number == number)


# By number of data type: how elements are stored, and the field that holds them where `raw_data` does not.
STORED = {1: ("<f4", FLOATS), 10: ("<f2", INTEGERS), 11: ("<f8", DOUBLES)}


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
    if not any(True for _ in graphs(model)):
        raise ValueError("it has no graph")
    for tensor in initializers(model):
        held: dict[int, list[Field]] = {}
        for field in within(model, tensor):
            held.setdefault(field.number, []).append(field)
        name = text(model, held[NAME][-1]) if NAME in held else ""
        if name in wanted:
            yield name, _values(model, name, held)


def _values(model: bytes, name: str, held: dict[int, list[Field]]) -> NDArray[np.float32]:
    """The values of a tensor in its shape."""
    shape = [size for field in held.get(DIMS, []) for size in numbers(model, field)]
    kind = next(numbers(model, held[DATA_TYPE][-1]), 0) if DATA_TYPE in held else 0
    if EXTERNAL in held:
        raise ValueError(f"{name!r} is in another file")
    if kind not in STORED:
        raise ValueError(f"{name!r} has data type {kind}, not float, float16 or double")
    form, typed = STORED[kind]
    parts = held.get(typed, [])
    if RAW in held:
        stored = np.frombuffer(value(model, held[RAW][-1]), form)
    elif typed == INTEGERS:
        halves = [half for field in parts for half in numbers(model, field)]
        stored = np.array(halves, np.uint16).view(form)
    else:
        stored = np.frombuffer(b"".join(value(model, field) for field in parts), form)
    if math.prod(shape) != stored.size:  # a negative size is a huge one here
        raise ValueError(f"{name!r} has {stored.size} values for the shape {shape}")
    return stored.reshape(shape).astype(np.float32)


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
        values = _outside_bytes(entries, path) if given is None else given.astype("<f4").tobytes()
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


def _outside_bytes(entries: dict[str, str], path: Path) -> bytes:
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


# ---- entries of `metadata_props`, which onnxruntime shows as `custom_metadata_map` ---------------

METADATA = 14  # ModelProto.metadata_props
PREFIX = "edged."
# ValueInfoProto.type, TypeProto.tensor_type, .shape, TensorShapeProto.dim; Dimension.dim_value
_SHAPE, _SIZE = (2, 1, 2), 1


def with_metadata(content: bytes, entries: Mapping[str, str]) -> bytes:
    """Return a model with these entries, whose names begin with `edged.`, in place of all such entries.

    Raises ValueError when this is no model.
    """
    kept = (
        content[field.start : field.last]
        for field in protobuf.fields(content, 0, len(content))
        if field.number != METADATA or not _entry_name(content, field).startswith(PREFIX)
    )
    return b"".join([*kept, *_written_entries(entries)])


def input_width(content: bytes) -> int:
    """Return the number of values in a row of a model's first input; 0 where it leaves a size open."""
    graphs = [part for part in protobuf.fields(content, 0, len(content)) if part.number == GRAPH]
    found = next(part for graph in graphs for part in protobuf.within(content, graph) if part.number == INPUT)
    for number in _SHAPE:
        found = next(part for part in protobuf.within(content, found) if part.number == number)
    return math.prod(_size(content, axis) for axis in [*protobuf.within(content, found)][1:])


def _size(content: bytes, axis: Field) -> int:
    known = (part for part in protobuf.within(content, axis) if part.number == _SIZE)
    return sum(size for part in known for size in protobuf.numbers(content, part))


def _entry_name(content: bytes, entry: Field) -> str:
    found = [protobuf.text(content, part) for part in protobuf.within(content, entry) if part.number == KEY]
    return found[-1] if found else ""


def _written_entries(entries: Mapping[str, str]) -> Iterator[bytes]:
    for name, content in entries.items():
        parts = b"".join(
            protobuf.message(number, len(text)) + text
            for number, text in ((KEY, name.encode()), (VALUE, content.encode()))
        )
        yield protobuf.message(METADATA, len(parts)) + parts
