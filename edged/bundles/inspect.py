"""What is in a bundle, and whether it is whole and runs here."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import shape_of
from edged.bundles.preflight import refusal, unsafe
from edged.bundles.source.contents import adopt_upstream, describe_upstream, is_upstream, load_graph
from edged.bundles.source.normalise import conform, read_model
from edged.domain.bundle_contents import LossOptions, Standardisation, Tensor
from edged.domain.protocols import Engine, LearningRate
from edged.domain.training.message import Message, SparseMessage
from edged.engines import open_engine, random_rows
from edged.engines.inference import InferenceModel
from edged.errors import BundleError
from edged.storage.models.bundles import Bundle

ROWS, STEPS = 8, 10
TOLERANCE = 1e-5

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Parameter(Message):
    """A parameter of a model; `size` is how many numbers it has."""

    name: str
    shape: tuple[int, ...]
    size: int
    trainable: bool


@dataclass(frozen=True)
class BundleFile(Message):
    """A file of a bundle."""

    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class BundleReport(SparseMessage):
    """What a bundle says about itself; the `edged` of upstream's is empty. `notes` are those of a build."""

    path: Path
    loss: str
    loss_options: LossOptions
    optimizer: str
    opset: int
    engine: str
    standardise: Standardisation | None
    target_standardise: Standardisation | None
    seed: int | None
    edged: str
    made_with: Mapping[str, str]
    version: int | None
    expires: float | None
    input: Tensor
    output: Tensor
    label: Tensor
    outputs: tuple[Tensor, ...]
    fingerprint: str
    parameters: tuple[Parameter, ...]
    trainable_size: int
    frozen_size: int
    files: tuple[BundleFile, ...]
    bytes: int
    notes: tuple[str, ...] | None = None


_SAME = (
    "loss", "loss_options", "optimizer", "opset", "engine", "standardise", "target_standardise",
    "seed", "edged", "made_with", "version", "expires", "input", "output", "label", "fingerprint",
)  # fmt: skip


def inspect(path: Path) -> BundleReport:
    """Everything a bundle says about itself; hashes are not checked, and one of upstream's is read too.

    Raises BundleError or CorruptError when it cannot be read.
    """
    bundle = _open(path, verify=False)
    parameters = _parameters(bundle)
    return BundleReport(
        path=path,
        **{name: getattr(bundle, name) for name in _SAME},
        outputs=(bundle.output, *bundle.more_outputs),
        parameters=parameters,
        trainable_size=sum(parameter.size for parameter in parameters if parameter.trainable),
        frozen_size=sum(parameter.size for parameter in parameters if not parameter.trainable),
        files=tuple(BundleFile(name, entry.bytes) for name, entry in sorted(bundle.files.items())),
        bytes=sum(entry.bytes for entry in bundle.files.values()),
    )


@dataclass(frozen=True)
class VerifiedPart(Message):
    """A check that a bundle has passed, and what was found."""

    check: str
    detail: str


@dataclass(frozen=True)
class VerifiedBundle(SparseMessage):
    """A bundle that has passed its checks; `loss` is before and after some steps."""

    ok: bool
    path: Path
    fingerprint: str
    loss: tuple[float, float]
    checks: tuple[VerifiedPart, ...]
    signed: bool | None = None  # by a key that was given; None where none was


def verify(path: Path) -> VerifiedBundle:
    """Check hashes, load every graph, train a few steps, export; nothing in `path` is changed.

    Raises BundleError, CorruptError, ModelError, TrainingError or UnavailableError at the first check that
    fails.
    """
    bundle = _open(path, verify=True)
    fingerprint = bundle.fingerprint
    checks = [VerifiedPart("files", f"{len(bundle.files)} files are there, {fingerprint[:12]}")]
    _check_description(bundle)
    with tempfile.TemporaryDirectory() as folder:
        if is_upstream(path):
            bundle, notes = adopt_upstream(path, Path(folder))
            checks += [VerifiedPart("note", note) for note in notes]
        engine = open_engine(bundle.engine, bundle)
        checks.append(VerifiedPart("graphs", f"the graphs of the {engine.name} engine load"))
        x, y = random_rows(bundle, engine, ROWS)
        exported = Path(folder) / "exported.onnx"
        engine.export(exported)
        checks.append(VerifiedPart("export", _compare(bundle, exported, x)))
        if is_upstream(path):
            checks.append(VerifiedPart("preflight", _preflight(bundle, exported)))
        before, after = _train(engine, x, y)
        checks.append(VerifiedPart("training", f"{STEPS} steps: loss {before:.4g} to {after:.4g}"))
    return VerifiedBundle(True, path, fingerprint, (before, after), tuple(checks))


def _open(path: Path, *, verify: bool) -> Bundle:
    return describe_upstream(path) if is_upstream(path) else Bundle.open(path, verify=verify)


def _check_description(bundle: Bundle) -> None:
    """What bundle.json says of the base model must be so: a file that was written anew has fitting hashes."""
    if not bundle.inference_model.is_file():
        return
    graph = load_graph(bundle.inference_model.with_suffix(".onnx")).graph
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


def _parameters(bundle: Bundle) -> tuple[Parameter, ...]:
    names = {*bundle.trainable, *bundle.frozen}
    if bundle.engine == "native":
        inputs = load_graph(bundle.path / onnxruntime_generator.EVALUATION).graph.input
        shapes = {value.name: tuple(map(int, shape_of(value))) for value in inputs if value.name in names}
    else:
        initializers = load_graph(bundle.inference_model).graph.initializer
        shapes = {tensor.name: tuple(tensor.dims) for tensor in initializers if tensor.name in names}
    return tuple(
        Parameter(name, shape, math.prod(shape), name in bundle.trainable) for name, shape in shapes.items()
    )


def _preflight(bundle: Bundle, exported: Path) -> str:
    """Look at every operator before a step is made: a gradient of upstream's may end the process."""
    found = unsafe(conform(read_model(exported), all_outputs=True), bundle.trainable)
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


def _train(engine: Engine, x: Floats, y: NDArray[Any]) -> tuple[float, float]:
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
