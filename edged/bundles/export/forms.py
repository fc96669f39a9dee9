"""Bundles in ORT format, with the places of the weights in it."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edged.bundles.graph import onnxruntime_generator
from edged.domain.bundle_contents import Slot, StoredForm
from edged.domain.model_files import FLOAT32
from edged.engines.onnx.base_model import BaseModel
from edged.engines.onnx.fields import raw_offsets
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


BASE = "inference_model.onnx"
GRAPHS = (onnxruntime_generator.TRAINING, onnxruntime_generator.EVALUATION, onnxruntime_generator.OPTIMIZER)
# The more of the work is done beforehand the better, as long as weights can still be replaced.
_TRIED_LEVELS = ("extended", "basic", "none")
ROWS = 8
TOLERANCE = 1e-4


def add_ort_format(
    staged: Path, names: Sequence[str], files: Sequence[str]
) -> tuple[Mapping[str, StoredForm], list[str]]:
    """Write the graphs of the bundle being made in ORT format, too.

    Parameters
    ----------
    staged
        The directory; the inference model lies in it, with raw parameters.
    names
        Parameters of the model.
    files
        The files that the bundle has so far.

    Returns
    -------
    Their description for `bundle.json`, and the files that were added.

    Raises
    ------
    BundleError
        When the graph cannot be had in this form.
    """
    form = _place(staged, names)
    graphs = [name for name in GRAPHS if name in files]
    for name in graphs:
        write_optimised(staged / name, (staged / name).with_suffix(SUFFIX), _TRIED_LEVELS[0])
    return {FLOAT32: form}, [form.file, *(Path(name).with_suffix(SUFFIX).name for name in graphs)]


def _place(staged: Path, names: Sequence[str]) -> StoredForm:
    """Return the description of the inference model in ORT format: its file, and the slots in it."""
    source = staged / BASE
    shapes = _shapes(source, names)
    plain = _slots(dict(raw_offsets(source.read_bytes())), shapes)
    if plain is None:
        raise BundleError("parameters are not stored as raw data", where=str(source))
    out = source.with_suffix(SUFFIX)
    for level in _TRIED_LEVELS:
        write_optimised(source, out, level, weights_change=True)
        places = {name: start for name, (start, _) in initializers(out.read_bytes()).items()}
        slots = _slots(places, shapes)
        if slots is not None and _accepts_weights(source, plain, out, slots):
            return StoredForm(out.name, slots)
    raise BundleError(
        "weights cannot be replaced in its ORT format", where=str(source), remedy="build without --ort-format"
    )


def _shapes(model: Path, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    tensors = {tensor.name: tuple(tensor.dims) for tensor in onnx.load(str(model)).graph.initializer}
    return {name: tensors[name] for name in names if name in tensors}


def _slots(places: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> tuple[Slot, ...] | None:
    """Return where the parameters lie; None where one of them does not."""
    if not shapes.keys() <= places.keys():
        return None
    return tuple(Slot(name, places[name], shape) for name, shape in shapes.items())


def _accepts_weights(source: Path, plain: Sequence[Slot], out: Path, slots: Sequence[Slot]) -> bool:
    """Whether both files answer alike once both have other weights."""
    rng = np.random.default_rng(0)
    values = {slot.name: _like_weights(rng, slot.shape) for slot in plain}
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for path, inputs in ((source, plain), (out, slots)):
            base = BaseModel(path, None, inputs, values)
            changed = Path(folder) / path.name
            changed.write_bytes(base.with_parameters(values))
            answers.append(_answer(changed))
    first, other = answers
    return np.allclose(first, other, rtol=TOLERANCE, atol=TOLERANCE)


def _like_weights(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.uniform(0.05, 0.2, shape).astype(np.float32) * rng.choice([-1, 1], shape).astype(np.float32)


def _answer(path: Path) -> NDArray[np.float32]:
    try:
        session = ort.session(str(path))
        first = session.get_inputs()[0]
        rows = np.random.default_rng(1).standard_normal((ROWS, *first.shape[1:])).astype(np.float32)
        made: NDArray[np.float32] = session.run(None, {first.name: rows})[0]
    except ort.ERRORS as problem:
        raise BundleError(f"does not run: {ort.one_line(problem)}", where=str(path)) from problem
    return made
