"""What onnxruntime's own tools make of a model: optimised, in ORT format, in int8, and lists of operators."""

from __future__ import annotations

import importlib
import logging
import tempfile
import warnings
from pathlib import Path

import onnx

from edged.engines.runtime import ort
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle

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
