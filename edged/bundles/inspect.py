"""What is in a bundle, and whether it is whole and runs here."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edged.bundles.export.forms import BASE
from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import shape_of
from edged.bundles.preflight import refusal, unsafe
from edged.bundles.source import foreign
from edged.bundles.source.normalise import conform, read_model
from edged.domain.model_files import FLOAT32, INT8
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.onnx.base_model import BaseModel
from edged.engines.portable.description import Description
from edged.errors import BundleError
from edged.storage.models.bundles import Bundle

if TYPE_CHECKING:
    from edged.domain.protocols import Engine, Labels
    from edged.storage.models.bundles import Standardisation

ROWS, STEPS = 8, 10
TOLERANCE = 1e-5
AGREEMENT = 1e-4

Floats = NDArray[np.float32]


def inspect(path: Path) -> dict[str, Any]:
    """Everything a bundle says about itself, ready for JSON; hashes are not checked.

    `parameters` is a table of `name`, `shape`, `size` (numbers) and `trainable`; `files` of `name` and
    `bytes`. A directory made by upstream is read too; its `edged` is empty.

    Raises BundleError or CorruptError when it cannot be read.
    """
    bundle = _open(path, verify=False)
    parameters = _parameters(bundle)
    described = (
        "loss",
        "loss_options",
        "optimizer",
        "opset",
        "engines",
        "refused",
        "standardise",
        "target_standardise",
        "seed",
        "edged",
        "made_with",
        "version",
        "expires",
    )
    return {
        "path": str(path),
        **{name: getattr(bundle, name) for name in described},
        **{name: vars(getattr(bundle, name)) for name in ("input", "output", "label")},
        "outputs": [vars(output) for output in (bundle.output, *bundle.more_outputs)],
        "labels": [vars(label) for label in bundle.labels],
        "losses": list(bundle.losses),
        "fingerprint": bundle.fingerprint,
        "parameters": parameters,
        "trainable_size": sum(row["size"] for row in parameters if row["trainable"]),
        "frozen_size": sum(row["size"] for row in parameters if not row["trainable"]),
        "files": [{"name": name, "bytes": entry.bytes} for name, entry in sorted(bundle.files.items())],
        "bytes": sum(entry.bytes for entry in bundle.files.values()),
    }


def verify(path: Path, *, threads: int = 1) -> dict[str, Any]:
    """Check hashes, load every graph, train a few steps, export; nothing in `path` is changed.

    Every engine of the bundle that is installed here is tried. The result has `checks`, a list of
    `check` and `detail`, and `loss` before and after the steps.

    Raises BundleError, CorruptError, ModelError, TrainingError or UnavailableError at the first check that
    fails.
    """
    bundle = _open(path, verify=True)
    fingerprint = bundle.fingerprint
    checks = [_check("files", f"{len(bundle.files)} files are there, {fingerprint[:12]}")]
    _check_description(bundle)
    with tempfile.TemporaryDirectory() as folder:
        if foreign.is_foreign(path):
            bundle, notes = foreign.adopt(path, Path(folder))
            checks += [_check("note", note) for note in notes]
        engine = open_engine("auto", bundle, threads=threads)
        checks.append(_check("graphs", f"the graphs of the {engine.name} engine load"))
        x, y = _rows(bundle, engine)
        exported = Path(folder) / "exported.onnx"
        engine.export(exported)
        checks.append(_check("export", _compare(bundle, exported, x)))
        if foreign.is_foreign(path):
            checks.append(_check("preflight", _preflight(bundle, exported)))
        quantised = BaseModel.of_form(bundle, INT8)
        if quantised is not None:
            checks.append(
                _check("int8", _compare_int8(quantised, engine, Path(folder) / "int8", exported, x))
            )
        before, after = _train(engine, x, y)
        checks.append(_check("training", f"{STEPS} steps: loss {before:.4g} to {after:.4g}"))
        if engine.name == "native" and "portable" in bundle.engines:
            checks.append(_check("portable", _compare_losses(bundle, (before, after), x, y, threads)))
    return {
        "ok": True,
        "path": str(path),
        "fingerprint": fingerprint,
        "loss": [before, after],
        "checks": checks,
    }


def _check(check: str, detail: str) -> dict[str, str]:
    return {"check": check, "detail": detail}


def _open(path: Path, *, verify: bool) -> Bundle:
    return foreign.describe(path) if foreign.is_foreign(path) else Bundle.open(path, verify=verify)


def _check_description(bundle: Bundle) -> None:
    """What bundle.json says of the base model must be so: a file that was written anew has fitting hashes."""
    if not bundle.inference_model.is_file():
        return
    graph = foreign.load_graph(bundle.inference_model.with_suffix(".onnx")).graph
    held = {tensor.name for tensor in graph.initializer}
    for what, tensor, value in (
        ("input", bundle.input, graph.input[0]),
        ("output", bundle.output, graph.output[0]),
    ):
        if tensor.name != value.name or list(tensor.shape[1:]) != shape_of(value)[1:]:
            raise BundleError(f"bundle.json has another {what} than the model", where=str(bundle.path))
    named = {*bundle.trainable, *bundle.frozen}
    for statistics in (bundle.standardise, bundle.target_standardise):
        named |= set(map(str, (statistics or {}).values()))
    if missing := sorted(named - held):
        raise BundleError(f"the model has no parameter {missing[0][:80]!r}", where=str(bundle.path))
    shapes = {} if bundle.portable is None else Description.of(bundle).shapes
    for value in graph.initializer:
        if shapes.get(value.name, tuple(value.dims)) != tuple(value.dims):
            what = f"bundle.json gives the parameter {value.name[:80]!r} another shape than the model"
            raise BundleError(what, where=str(bundle.path))


def _parameters(bundle: Bundle) -> list[dict[str, Any]]:
    shapes = _shapes(bundle)
    return [
        {"name": name, "shape": shape, "size": _size(shape), "trainable": name in bundle.trainable}
        for name, shape in shapes.items()
    ]


def _shapes(bundle: Bundle) -> dict[str, list[int | str]]:
    names = {*bundle.trainable, *bundle.frozen}
    if "native" in bundle.engines:
        inputs = foreign.load_graph(bundle.path / onnxruntime_generator.EVALUATION).graph.input
        return {value.name: shape_of(value) for value in inputs if value.name in names}
    initializers = foreign.load_graph(bundle.path / BASE[FLOAT32]).graph.initializer
    return {tensor.name: list(tensor.dims) for tensor in initializers if tensor.name in names}


def _size(shape: list[int | str]) -> int:
    return math.prod(int(dim) for dim in shape)


def _rows(bundle: Bundle, engine: Engine) -> tuple[Floats, Labels]:
    """Random rows of plausible size in raw units, and labels for them."""
    rng, parameters = np.random.default_rng(0), engine.parameters()
    x = _raw(rng.standard_normal((ROWS, bundle.input.width)), bundle.standardise, parameters)
    if bundle.target_standardise is not None and bundle.target_standardise == bundle.standardise:
        return x, x
    made: list[NDArray[Any]] = []
    for i, label in enumerate(bundle.labels):
        shape, loss = (ROWS, *label.row), bundle.losses[i]["loss"] if bundle.losses else bundle.loss
        if label.dtype == "int64":
            made.append(rng.integers(0, _classes(bundle, i), shape))
        elif loss == "bce_with_logits":
            made.append(rng.integers(0, 2, shape).astype(np.float32))
        else:
            names = bundle.target_standardise if i == 0 else None
            made.append(_raw(rng.standard_normal(shape), names, parameters))
    return x, made


def _classes(bundle: Bundle, label: int) -> int:
    """How many classes a label has; where a block of one's own takes it, as many as every output has."""
    widths = [output.width for output in (bundle.output, *bundle.more_outputs)]
    return widths[label] if bundle.losses else min(widths)


def _raw(z: NDArray[np.float64], names: Standardisation | None, parameters: dict[str, Floats]) -> Floats:
    if names is not None:
        z = z / parameters[names["scale"]] + parameters[names["mean"]]
    return z.astype(np.float32)


def _preflight(bundle: Bundle, exported: Path) -> str:
    """Look at every operator before a step is made: a gradient of upstream's may end the process."""
    found = unsafe(conform(read_model(exported), ()), bundle.trainable)
    if found:
        raise refusal(found)
    return "every operator has a gradient that the native engine computes rightly"


def _compare(bundle: Bundle, exported: Path, x: Floats) -> str:
    """The initial export must do what the base model does: checkpoint and model belong together."""
    got = InferenceModel(exported).predict(x)
    if not bundle.inference_model.is_file():
        return f"an inference model with {got.shape[1]} outputs can be exported"
    base = InferenceModel(bundle.inference_model).predict(x)
    difference = float(np.abs(got - base).max() / max(1.0, float(np.abs(base).max())))
    if not difference <= TOLERANCE:
        raise BundleError(
            f"checkpoint and inference model differ by {difference:.2g}",
            where=str(bundle.path),
            remedy="build the bundle again",
        )
    return f"the export equals the base model (relative difference {difference:.1g})"


def _compare_int8(base: BaseModel, engine: Engine, path: Path, exported: Path, x: Floats) -> str:
    """How far the quantised form of the initial model is from the other."""
    path.write_bytes(base.with_parameters(engine.parameters()))
    got, plain = (InferenceModel(each).predict(x) for each in (path, exported))
    difference = float(np.abs(got - plain).max() / max(1.0, float(np.abs(plain).max())))
    if not np.isfinite(difference):
        raise BundleError("the quantised form answers with numbers that are not finite", where=str(base.path))
    return f"weights fit into the quantised form (relative difference {difference:.1g})"


def _compare_losses(bundle: Bundle, native: tuple[float, float], x: Floats, y: Labels, threads: int) -> str:
    """The portable engine must come to the same losses: its graphs were made from the native ones."""
    got = _train(open_engine("portable", bundle, threads=threads), x, y)
    differences = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(got, native, strict=True)]
    if not max(differences) <= AGREEMENT:
        raise BundleError(
            f"the portable engine's loss differs by {max(differences):.2g}",
            where=str(bundle.path),
            remedy="build with --engine native",
        )
    return f"{STEPS} steps: the same losses (relative difference {max(differences):.1g})"


def _train(engine: Engine, x: Floats, y: Labels) -> tuple[float, float]:
    engine.begin(LearningRate(1e-3))
    before = engine.evaluate(x, y)
    for _ in range(STEPS):
        step = engine.step(x, y, careful=True)
        if not step.applied:
            raise BundleError(
                f"training gives a loss of {step.loss} or gradients that are not finite", where="step"
            )
    engine.check()
    return before, engine.evaluate(x, y)
