"""Graphs in ORT format, which is what a minimal build of onnxruntime reads.

The file holds the graph as the runtime that writes it has optimised it, in FlatBuffers' wire format
(flatbuffers.dev, "Internals"; the tables are those of onnxruntime's `ort.fbs`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edged.engines.runtime import ort
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError, CorruptError

SUFFIX = ".ort"
# Layouts for this machine's processor alone are not among them.
LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
# Weights are written into the file later: nothing may be computed from them beforehand.
FOLDING = ["ConstantFolding"]

# Numbers of the fields of the tables.
_VERSION, _MODEL = 0, 1
_GRAPH = 7
_INITIALIZERS = 0
_NAME, _RAW = 0, 4


def write_optimised(source: Path, out: Path, level: str, *, weights_change: bool = False) -> None:
    """Write what this machine's onnxruntime makes of a graph, in the format that the ending of `out` says.

    Parameters
    ----------
    source
        An ONNX file.
    out
        `.onnx` or `.ort`.
    level
        `none`, `basic`, `extended` or `all`.
    weights_change
        Nothing is computed from weights then.

    Raises
    ------
    BundleError
        When the runtime cannot load the graph.
    """
    options = ort.session_options(1)
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
    options.optimized_model_filepath = str(out)
    options.add_session_config_entry("session.save_model_format", "ORT" if out.suffix == SUFFIX else "ONNX")
    disabled = FOLDING if weights_change else []
    try:
        onnxruntime.InferenceSession(
            str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )
    except ort.ERRORS as problem:
        raise BundleError(f"cannot be converted: {ort.one_line(problem)}", where=str(source)) from problem


def initializers(content: bytes) -> dict[str, tuple[int, int]]:
    """First byte and number of bytes of the values of every initializer of the main graph, by name.

    Raises CorruptError when it is not in ORT format.
    """
    try:
        graph = _model(content).table(_GRAPH)
        return {tensor.text(_NAME): tensor.bytes(_RAW) for tensor in graph.tables(_INITIALIZERS)}
    except (struct.error, ValueError) as problem:
        raise CorruptError("is not in ORT format", where="model") from problem


def format_version(content: bytes) -> str:
    """Version of the format; CorruptError when it is none."""
    try:
        return _root(content).text(_VERSION)
    except (struct.error, ValueError) as problem:
        raise CorruptError("is not in ORT format", where="model") from problem


def _root(content: bytes) -> _Table:
    if content[4:8] != b"ORTM":
        raise ValueError("no identifier")
    return _Table(content, 0).follow(0)


def _model(content: bytes) -> _Table:
    return _root(content).table(_MODEL)


@dataclass(frozen=True)
class _Table:
    """A table: a vtable before it says where each field lies, counted from the table."""

    content: bytes
    at: int

    def follow(self, place: int) -> _Table:
        """What the offset at `place` leads to."""
        return _Table(self.content, place + self._number("<I", place))

    def _number(self, form: str, place: int) -> int:
        return int(struct.unpack_from(form, self.content, place)[0])

    def _field(self, number: int) -> int:
        vtable = self.at - self._number("<i", self.at)
        slot = 4 + 2 * number
        offset = self._number("<H", vtable + slot) if slot < self._number("<H", vtable) else 0
        if not offset:
            raise ValueError(f"no field {number}")
        return self.at + offset

    def table(self, number: int) -> _Table:
        """A field that is a table."""
        return self.follow(self._field(number))

    def bytes(self, number: int) -> tuple[int, int]:
        """First byte and number of elements of a field that is a vector."""
        vector = self.table(number).at
        return vector + 4, self._number("<I", vector)

    def text(self, number: int) -> str:
        """A field that is a string."""
        start, size = self.bytes(number)
        return self.content[start : start + size].decode()

    def tables(self, number: int) -> Iterator[_Table]:
        """A field that is a vector of tables."""
        start, count = self.bytes(number)
        for i in range(count):
            yield self.follow(start + 4 * i)
