"""Models for other programs: with other outputs, optimised, in ORT format, quantised; lists of operators."""

from __future__ import annotations

import difflib
import importlib
import logging
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from edged.bundles.graph.edit import leave_only, reads
from edged.bundles.source.contents import adopt_upstream, is_upstream
from edged.bundles.source.normalise import parameter_names, read_model
from edged.domain.bundle_contents import MODEL
from edged.domain.training.message import SparseMessage
from edged.engines import open_engine
from edged.engines.runtime import ort
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError, ConfigError, CorruptError
from edged.storage.files.atomic import publish_file
from edged.storage.models.bundles import DESCRIPTION, Bundle
from edged.storage.models.model_metadata import ModelMetadata
from edged.storage.models.records import stored_record
from edged.storage.recordings.reader import read_stream

_PLAIN = ".onnx"
ORT_SUFFIX = ".ort"
# Layouts for this machine's processor alone are in `all` only.
LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
PURPOSES = ("all", "serving")
_QUANTISED = ("MatMul", "Gemm", "Conv")
ROWS, RUNS = 256, 200


@dataclass(frozen=True)
class ExportRequest:
    """Options of an export: outputs, optimisation, form and parameters.

    Attributes
    ----------
    outputs
        Names of tensors that it is to answer with, those inside it too; its own, when empty.
    optimise
        `none`, `basic`, `extended`, or `all`, which is for processors like this machine's.
    int8
        Whether its layers multiply 8-bit integers.
    """

    outputs: tuple[str, ...] = ()
    optimise: str = "none"
    int8: bool = False


@dataclass(frozen=True)
class ExportReport(SparseMessage):
    """What came of an export, and how it compares with the model that it was made of.

    Attributes
    ----------
    file
        The file that was written.
    bytes, source_bytes
        Its size, and that of the model before.
    outputs
        Names of its outputs.
    float32_layers
        Layers that could not be quantised.
    difference, largest
        Largest difference of the main output, and its largest value before; None where it is no output any
        more.
    us
        Time of one row here, before and after, in µs.
    """

    file: Path
    bytes: int
    source_bytes: int
    outputs: tuple[str, ...]
    float32_layers: tuple[str, ...]
    difference: float | None
    us: tuple[float, float]
    largest: float | None = None


def export(
    source: Path,
    out: Path,
    wish: ExportRequest,
    *,
    data: Path | None = None,
) -> ExportReport:
    """Write a model to `out`, as ONNX or in ORT format as its name ends.

    Parameters
    ----------
    source
        A bundle, a directory made by upstream, one of the registry, or an ONNX file.
    out
        The file.
    wish
        What is to become of it.
    data
        A recorded stream, on which the model is compared with what it was; random rows without.

    Raises
    ------
    ConfigError
        When there is no such output or level, or the name has another ending.
    BundleError, CorruptError
        When the model cannot be read, or not had like this.
    """
    if out.suffix not in (_PLAIN, ORT_SUFFIX):
        raise ConfigError(f"{out.name!r} is no name of a model", where="-o", remedy="end it in .onnx or .ort")
    if wish.optimise not in LEVELS:
        raise ConfigError(
            f"unknown level {wish.optimise!r}", where="--optimise", remedy=f"one of {', '.join(LEVELS)}"
        )
    model = _read(source)
    if not model.graph.output:
        raise BundleError("is no ONNX model: it has no outputs", where=str(source))
    before, main = model.SerializeToString(), str(model.graph.output[0].name)
    rows = _rows(model, data)
    left: list[str] = []
    if wish.outputs:
        choose_outputs(model, wish.outputs)
    if wish.int8:
        names = parameter_names(model.graph)
        model = quantised(model)
        left = _left_in_float32(model, names)
    content = _written(model, out.suffix, wish, _metadata(source))
    publish_file(out, content)
    outputs = tuple(str(value.name) for value in model.graph.output)
    old, new = _session(before), _session(content)
    difference, largest = _compared(old, new, main, rows) if main in outputs else (None, None)
    us = (_microseconds(old, rows[:1]), _microseconds(new, rows[:1]))
    return ExportReport(out, len(content), len(before), outputs, tuple(left), difference, us, largest)


def _read(source: Path) -> onnx.ModelProto:
    if (source / DESCRIPTION).is_file():
        return read_model(Bundle.open(source).inference_model)
    if source.is_dir() and is_upstream(source):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "model.onnx"
            open_engine("native", adopt_upstream(source, Path(folder))[0]).export(out)
            return read_model(out)
    return read_model(source / MODEL if source.is_dir() else source)


def _metadata(source: Path) -> ModelMetadata | None:
    """What is known of the names and the origin of a model; None for a file of anybody's."""
    if not source.is_dir() or is_upstream(source):
        return None
    if (source / DESCRIPTION).is_file():
        return ModelMetadata.of_bundle(Bundle.open(source, verify=False))
    record = stored_record(source)
    try:
        trained = Bundle.open(source.parents[1] / "bundle", verify=False)
    except (BundleError, CorruptError):
        return ModelMetadata(record=record)
    own = record is None or record.data.bundle in (None, trained.fingerprint)
    return ModelMetadata.of_bundle(trained, record) if own else ModelMetadata(record=record)


def choose_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Let the model answer with these tensors, and compute nothing else.

    Raises ConfigError when no node computes one of them.
    """
    graph = model.graph
    computed = [name for node in graph.node for name in node.output if name]
    for name in names:
        if name not in computed:
            near = difflib.get_close_matches(name, computed, 5, 0.3) or computed[-5:]
            remedy = f"such as {', '.join(near)}"
            raise ConfigError(f"no node computes {name!r}", where="--outputs", remedy=remedy)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    known = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    values = [known.get(name) or helper.make_empty_tensor_value_info(name) for name in names]
    del graph.output[:]
    graph.output.extend(values)
    leave_only(graph, names)


def _left_in_float32(model: onnx.ModelProto, names: Iterable[str]) -> list[str]:
    """Nodes of a quantised model that still read float32 matrices of these names, with their kind."""
    weights = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 1} & set(names)
    return [f"{each.name} ({each.op_type})" for each in model.graph.node if weights & reads(each)]


def _written(
    model: onnx.ModelProto, suffix: str, wish: ExportRequest, metadata: ModelMetadata | None
) -> bytes:
    content = bytes(model.SerializeToString(deterministic=True))
    if metadata is not None:
        content = metadata.stamp(content)
    if wish.optimise == "none" and suffix == _PLAIN:
        return content
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source.onnx", Path(folder) / f"out{suffix}"
        source.write_bytes(content)
        write_optimised(source, out, wish.optimise)
        return out.read_bytes()


def _rows(model: onnx.ModelProto, data: Path | None) -> NDArray[np.float32]:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    if data is None:
        return np.random.default_rng(0).standard_normal((ROWS, *shape)).astype(np.float32)
    recorded = read_stream(data)
    x = recorded.finite().x[:ROWS]
    if not len(x):
        raise ConfigError(recorded.left_out() or "there are no rows", where=str(data))
    if x.shape[1] != np.prod(shape):
        raise ConfigError(f"has {x.shape[1]} features, the model takes {np.prod(shape)}", where=str(data))
    return x.reshape(-1, *shape)


def _compared(before: Any, after: Any, output: str, rows: NDArray[np.float32]) -> tuple[float, float]:
    """Largest difference of an output of two sessions, and its largest value in the first."""
    old, new = (session.run([output], {session.get_inputs()[0].name: rows})[0] for session in (before, after))
    return float(np.abs(new - old).max()), float(np.abs(old).max())


def _session(content: bytes) -> Any:
    try:
        return ort.session(content)
    except ort.ERRORS as problem:
        raise BundleError(f"cannot be loaded: {ort.one_line(problem)}", where="model") from problem


def _microseconds(session: Any, row: NDArray[np.float32]) -> float:
    name, times = session.get_inputs()[0].name, []
    for _ in range(RUNS):
        began = time.perf_counter()
        session.run(None, {name: row})
        times.append(time.perf_counter() - began)
    return round(float(np.median(times)) * 1e6, 1)


# ---- onnxruntime's own tools -------------------------------------------------------------------


def write_optimised(source: Path, out: Path, level: str) -> None:
    """Write what this machine's onnxruntime makes of an ONNX file, to a file that ends in `.onnx` or `.ort`.

    `level` is one of `LEVELS`. Raises BundleError when the runtime cannot load the graph.
    """
    options = ort.session_options(1)
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
    options.optimized_model_filepath = str(out)
    form = "ORT" if out.suffix == ORT_SUFFIX else "ONNX"
    options.add_session_config_entry("session.save_model_format", form)
    try:
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    except ort.ERRORS as problem:
        raise BundleError(f"cannot be converted: {ort.one_line(problem)}", where=str(source)) from problem


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with matrix products and convolutions in 8-bit integers, by dynamic quantisation.

    Weights are unsigned with a scale for each output: x86 without VNNI adds products with signed ones in 16
    bits, which overflow.

    Raises BundleError when it has no layer that could be quantised.
    """
    tool = importlib.import_module("onnxruntime.quantization")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, str(source))
        logging.disable(logging.WARNING)  # it recommends a step that changes nothing here
        try:
            tool.quantize_dynamic(
                source, out, per_channel=True, weight_type=tool.QuantType.QUInt8,
                op_types_to_quantize=list(_QUANTISED),
            )  # fmt: skip
        finally:
            logging.disable(logging.NOTSET)
        made = onnx.load(str(out))
    if not {"MatMulInteger", "ConvInteger"}.intersection(node.op_type for node in made.graph.node):
        raise BundleError(
            f"has no layer that could be quantised: {', '.join(_QUANTISED)} with weights of their own are",
            where=str(model.graph.name),
            remedy="leave out int8",
        )
    return made


def required_operators(path: Path, purpose: str = "all", *, types: bool = False) -> str:
    """Text of a required-operators config for a bundle, ready for `--include_ops_by_config`.

    It lists the operators of the graphs as written and as this onnxruntime optimises them. With `types` an
    operator is followed by the types that it needs.

    Raises ConfigError when there is no such purpose; BundleError or CorruptError when the bundle cannot be
    read.
    """
    if purpose not in PURPOSES:
        remedy = f"one of {', '.join(PURPOSES)}"
        raise ConfigError(f"there is no purpose {purpose!r}", where="--for", remedy=remedy)
    bundle = Bundle.open(path)
    start = "inference_" if purpose == "serving" else ""
    graphs = [n for n in sorted(bundle.files) if n.endswith(".onnx") and n.startswith(start)]
    tool = importlib.import_module("onnxruntime.tools.ort_format_model")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the tool leaves the closing of files to others
        made, out = [], Path(folder) / "required.config"
        for name, level in ((name, level) for name in graphs for level in ("none", "all")):
            made.append(Path(folder) / f"{name}.{level}{ORT_SUFFIX}")
            write_optimised(bundle.path / name, made[-1], level)
        tool.create_config_from_models(made, out, types)
        lines = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    suffix = "" if purpose == "all" else f" for {purpose}"
    head = f"# operators of the bundle {path.name}{suffix}; onnxruntime {onnxruntime.__version__}"
    return "\n".join([head, *lines]) + "\n"
