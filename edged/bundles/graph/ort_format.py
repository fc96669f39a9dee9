"""Graphs in ORT format, which is what a minimal build of onnxruntime reads.

The file holds the graph as the runtime that writes it has optimised it, in a FlatBuffer; the tables are those
of onnxruntime's `ort.fbs`.
"""

from __future__ import annotations

import struct
from pathlib import Path

from edged.engines.onnx.flatbuffer import root
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

_IDENTIFIER = b"ORTM"
# Numbers of the fields of the tables.
_MODEL = 1
_GRAPH = 7
_INITIALIZERS = 0
_NAME, _RAW = 0, 4


def write_optimised(source: Path, out: Path, level: str, *, weights_change: bool = False) -> None:
    """Write what this machine's onnxruntime makes of an ONNX file, to a file that ends in `.onnx` or `.ort`.

    `level` is one of `LEVELS`. With `weights_change` nothing is computed from weights. Raises BundleError
    when the runtime cannot load the graph.
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
        model = root(content, _IDENTIFIER).table(_MODEL)
        graph = model and model.table(_GRAPH)
        tensors = graph.tables(_INITIALIZERS) if graph else []
        return {tensor.text(_NAME): tensor.vector(_RAW) for tensor in tensors}
    except (struct.error, ValueError, IndexError) as problem:
        raise CorruptError("is not in ORT format", where="model") from problem
