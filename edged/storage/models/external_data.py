"""Where an ONNX file says that tensors lie outside of it, and which operators it has; no ONNX package needed.

Only the fields that lead to tensors and operators are followed. What is no protobuf is refused: other
parsers may read on behind it, and find more.

Source: onnx.proto3 of the ONNX project, messages ModelProto to StringStringEntryProto.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from edged.domain.protobuf import BYTES, Field, fields, value

# Of each message the fields that hold messages on the way to a tensor.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {4: "operator", 5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "place"},
}
_LONGEST = 4096  # bytes of an entry that says where a tensor is


def external_places(path: Path) -> Iterator[str]:
    """The `location` of every tensor that the model in file `path` keeps elsewhere.

    Raises OSError when the file cannot be read; ValueError when this is no model; places that were found
    before may have come.
    """
    for content, field in _found(path, "place"):
        yield from _location(content, field)


def operators(path: Path) -> Iterator[str]:
    """The type of every operator in the model in file `path`, those of inner graphs and functions too.

    Raises errors as `external_places`.
    """
    for content, field in _found(path, "operator"):
        yield value(content, field)[:_LONGEST].decode(errors="replace")


def _found(path: Path, wanted: str) -> Iterator[tuple[mmap.mmap, Field]]:
    """Every field of a kind, with the content that it lies in."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            waiting = [("model", 0, len(content))]
            while waiting:
                kind, start, end = waiting.pop()
                for field in _messages(content, start, end):
                    inner = _FIELDS[kind].get(field.number)
                    if inner == wanted:
                        yield content, field
                    elif inner in _FIELDS:
                        waiting.append((inner, field.first, field.last))


def _messages(content: mmap.mmap, start: int, end: int) -> Iterator[Field]:
    """The fields of a message that have a length."""
    return (field for field in fields(content, start, end) if field.kind == BYTES)


def _location(content: mmap.mmap, entry: Field) -> Iterator[str]:
    """The value of an entry whose key is `location`; what is too long to be read counts as one."""
    if (length := entry.last - entry.first) > _LONGEST:
        yield f"{length} bytes of name"
        return
    said = {field.number: value(content, field) for field in _messages(content, entry.first, entry.last)}
    if said.get(1) == b"location":
        yield said.get(2, b"").decode(errors="replace")
