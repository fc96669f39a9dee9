"""Building a bundle: from an inference model to everything a device needs to train it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, helper

from edged import __version__
from edged.artifacts import upstream
from edged.artifacts.conform import conform, parameter_names, read_model
from edged.artifacts.cross_entropy import CrossEntropy
from edged.artifacts.custom_loss import CustomLoss
from edged.artifacts.graphs import opset_of, refuse_taken, shape_of, value_info
from edged.artifacts.losses import Loss, add_loss, check_loss, label_of
from edged.artifacts.optimizers import Optimizer
from edged.artifacts.portable import MODELS, add_step_graph, raw_parameters
from edged.artifacts.preflight import native_refusal
from edged.artifacts.rewriting import inference_form, trainable_form
from edged.artifacts.selection import select
from edged.artifacts.standardise import INPUT, STANDARD_OUTPUT, Statistics, standard_target, standardise_model
from edged.artifacts.training_graph import TrainingGraph
from edged.errors import BundleError, ConfigError
from edged.storage.bundles import CUSTOM, Bundle, Standardisation, Tensor, publish, refuse_foreign, seal
from edged.storage.files import STAGING, disk_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

INFERENCE = "inference_model.onnx"
NATIVE_FILES = (upstream.TRAINING, upstream.EVALUATION, upstream.OPTIMIZER, upstream.CHECKPOINT)
ENGINES = ("native", "portable", "both")


@dataclass(frozen=True)
class _Plan:
    """An inference model that is ready, and what is to be put behind it."""

    model: onnx.ModelProto
    loss: str | Loss
    input: Tensor
    output: Tensor
    label: Tensor
    target: Standardisation | None
    trainable: list[str]
    frozen: list[str]

    @property
    def loss_name(self) -> str:
        """What the bundle calls the loss."""
        return self.loss if isinstance(self.loss, str) else self.loss.name

    @property
    def compared(self) -> str:
        """The tensor that the loss compares with the label, in the network's own units."""
        return self.output.name if self.target is None else STANDARD_OUTPUT

    def training_graph(self, model: onnx.ModelProto) -> TrainingGraph:
        """The training graph made from this plan."""
        return TrainingGraph(
            model,
            data=self.input,
            label=self.label,
            loss=self.loss_name,
            output=replace(self.output, name=self.compared),
            target=self.target,
            frozen=tuple(self.frozen),
        )


def build(
    model: onnx.ModelProto | Path,
    out: Path,
    *,
    loss: str | Path | onnx.ModelProto | CrossEntropy,
    optimizer: str | Optimizer = "adamw",
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
    standardise: Statistics | None = None,
    engine: str = "both",
    seed: int | None = None,
    note: Callable[[str], None] | None = None,
) -> Bundle:
    """Build a bundle from an inference model and publish it as directory `out`.

    The same input gives the same bytes. An older bundle at `out` is replaced, anything else is not.

    Parameters
    ----------
    model
        One float32 input `(batch, ...)` and one float32 output; logits for the classifying losses.
    out
        The bundle directory; its parent must exist.
    loss
        `cross_entropy`, `mse`, `bce_with_logits` or `l1`, the mean over the batch; a `CrossEntropy` with
        weights of classes; or an ONNX model of a loss, see `custom_loss`.
    optimizer
        `adamw`, `adamw_pytorch`, `sgd` or `sgd_momentum` with its defaults, or an `Optimizer`.
    train
        Globs over parameter names, or `last:N` for the N last layers: only what matches is trained.
        Everything, when empty.
    freeze
        The same: what matches is not trained.
    standardise
        Statistics that become part of the graphs; with None values go in as they are.
    engine
        Engine the bundle is for: `native`, `portable` or `both`. With `both`, a model that only one
        of them can train becomes a bundle for that one.
    seed
        Noted in the bundle: the seed the model was initialised from, and from which the portable engine
        draws the noise of its steps.
    note
        Told, in one line, when `both` became one of them, and why.

    Raises
    ------
    ConfigError
        When loss, optimizer or engine is unknown, or a glob matches nothing.
    UnavailableError
        Without the training build of onnxruntime.
    BundleError
        When the model cannot be trained or does not fit, or `out` is something else. With engine
        `portable` also when a node has no form in standard operators.
    StorageError
        When it cannot be written.
    """
    chosen = _loss(loss)
    rule = Optimizer.of(optimizer) if isinstance(optimizer, str) else optimizer
    _check_engine(engine)
    refuse_foreign(out)
    plan = _plan(conform(read_model(model)), chosen, train, freeze, standardise)
    engine = _without_native(plan, rule, engine, note)
    with _staging(out) as staged:
        upstream.generate(
            _with_loss(plan), trainable=plan.trainable, frozen=plan.frozen, optimizer=rule, out=staged
        )
        raw_parameters(plan.model, (*plan.trainable, *plan.frozen))
        onnx.save(inference_form(plan.model), str(staged / INFERENCE))
        portable = _portable(plan, rule, staged, engine, seed or 0, note)
        files = [
            INFERENCE,
            *(NATIVE_FILES if engine != "portable" else ()),
            *(portable["models"].values() if portable else ()),
        ]
        described = _describe(plan, staged, rule.name, standardise, seed)
        seal(replace(described, portable=portable, engines=_engines(files)), files)
        for name in NATIVE_FILES:
            if name not in files:
                (staged / name).unlink()
        publish(staged, out)
    return Bundle.open(out, verify=False)


def _loss(loss: str | Path | onnx.ModelProto | CrossEntropy) -> str | Loss:
    if isinstance(loss, CrossEntropy):
        return loss
    if not isinstance(loss, str):
        return CustomLoss(loss)
    check_loss(loss)
    return loss


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise ConfigError(
            f"there is no engine {engine!r}", where="engine", remedy=f"one of {', '.join(ENGINES)}"
        )


def _without_native(
    plan: _Plan, optimizer: Optimizer, engine: str, note: Callable[[str], None] | None
) -> str:
    """The engine to build for, when the native one cannot or must not train this model."""
    if engine == "portable":
        return engine
    problem = _lack(optimizer) or native_refusal(plan.model.graph, plan.trainable)
    if problem is None:
        return engine
    if engine == "native":
        raise problem
    if note is not None:
        note(f"for the portable engine alone: {problem.line()}")
    return "portable"


def _lack(optimizer: Optimizer) -> BundleError | None:
    lack = optimizer.native_lack
    if lack is None:
        return None
    return BundleError(
        f"the native engine has no {lack}", where="optimizer", remedy="build with --engine portable"
    )


def _engines(files: Sequence[str]) -> tuple[str, ...]:
    marks = {"native": upstream.TRAINING, "portable": MODELS["step"]}
    return tuple(engine for engine, file in marks.items() if file in files)


def _portable(
    plan: _Plan,
    optimizer: Optimizer,
    staged: Path,
    engine: str,
    seed: int,
    note: Callable[[str], None] | None,
) -> dict[str, Any] | None:
    """The description of the step graph, once it is written; None where the bundle has none."""
    if engine == "native":
        return None
    try:
        return add_step_graph(
            staged,
            base=staged / INFERENCE,
            source=plan.training_graph,
            optimizer=optimizer,
            seed=seed,
        )
    except BundleError as problem:
        if engine == "portable":
            raise
        if note is not None:
            note(f"for the native engine alone: {problem.line()}")
        return None


def _plan(
    model: onnx.ModelProto,
    loss: str | Loss,
    train: Sequence[str],
    freeze: Sequence[str],
    statistics: Statistics | None,
) -> _Plan:
    trainable, frozen = select(model.graph, train, freeze)
    _unique(model.graph)
    if statistics is not None:
        name = loss if isinstance(loss, str) else loss.name
        if statistics.target_names is not None and name not in ("mse", "l1", CUSTOM):
            raise ConfigError(f"a class cannot be standardised: loss {name}", where="statistics.target_mean")
        standardise_model(model, statistics)
        frozen += [name for name in parameter_names(model.graph) if name not in (*trainable, *frozen)]
    take, give = _tensor(model.graph.input[0]), _tensor(model.graph.output[0])
    label, target = label_of(loss, give), statistics.target_names if statistics is not None else None
    refuse_taken(model.graph, [label.name])
    return _Plan(model, loss, take, give, label, target, trainable, frozen)


def _unique(graph: onnx.GraphProto) -> None:
    seen: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in seen:
            raise BundleError("two parameters have the same name", where=tensor.name)
        seen.add(tensor.name)


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    return Tensor(str(value.name), tuple(shape_of(value)))


def _with_loss(plan: _Plan) -> onnx.ModelProto:
    """The forward model with the label as second input and the loss as its only output."""
    model = trainable_form(plan.model, plan.trainable)
    graph = model.graph
    graph.input.append(value_info(plan.label))
    target = plan.label.name
    if plan.target is not None:
        target = standard_target(graph, target, plan.target)
    scalar = add_loss(graph, plan.loss, plan.compared, target)
    # The inference output stays inside as it is: an export takes the graph from there.
    graph.value_info.append(graph.output[0])
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(scalar, TensorProto.FLOAT, []))
    return model


def _describe(
    plan: _Plan, staged: Path, optimizer: str, statistics: Statistics | None, seed: int | None
) -> Bundle:
    return Bundle(
        path=staged,
        edged=__version__,
        loss=plan.loss_name,
        optimizer=optimizer,
        input=plan.input,
        output=plan.output,
        label=plan.label,
        trainable=tuple(plan.trainable),
        frozen=tuple(plan.frozen),
        standardise=INPUT if statistics is not None else None,
        target_standardise=plan.target,
        opset=opset_of(plan.model),
        seed=seed,
    )


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A directory beside `out` in which the bundle is made; gone afterwards, whatever happens."""
    try:
        staged = Path(tempfile.mkdtemp(prefix=f"{STAGING}{out.name}-", dir=out.parent))
    except OSError as problem:
        raise BundleError(
            f"cannot write here: {problem.strerror}",
            where=str(out.parent),
            remedy="create the parent directory",
        ) from problem
    staged.chmod(0o755)
    try:
        with disk_errors("building the bundle", out):
            yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)
