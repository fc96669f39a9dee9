"""Building a bundle: from an inference model to everything a device needs to train it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edged import __version__
from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import opset_of, refuse_taken, shortened, tensor_of, value_info
from edged.bundles.graph.external_data import MOST, is_elsewhere, set_apart, size_of, values_of
from edged.bundles.graph.naming import Naming, made_with
from edged.bundles.losses.objective import Given, Objective, keeps_all_outputs, objective
from edged.bundles.preflight import lacking, obstacles, refusal
from edged.bundles.source.axes import check_outputs
from edged.bundles.source.classifiers import class_names, warn_about_probabilities
from edged.bundles.source.normalise import conform, parameter_names, read_model
from edged.bundles.source.standardise import (
    INPUT,
    STANDARD_OUTPUT,
    Statistics,
    is_standardised,
    scaling_in_front,
    standard_target,
    standardise_model,
)
from edged.bundles.source.trainable import select
from edged.bundles.source.training_mode import inference_form, running_statistics
from edged.bundles.step_graph.builder import build_step_graph
from edged.bundles.step_graph.portable import add_step_graph, raw_parameters
from edged.bundles.step_graph.training_graph import TrainingGraph
from edged.domain.bundle_contents import Standardisation, Tensor
from edged.domain.training.optimizers import Optimizer
from edged.engines import ENGINES
from edged.engines.native.checkpoint import TrainingCheckpoint, dump
from edged.errors import BundleError, ConfigError
from edged.storage.files.atomic import disk_errors, staging_path
from edged.storage.models.bundles import CUSTOM, MEASURING, Bundle, publish, refuse_foreign, seal

if TYPE_CHECKING:
    from edged.engines.portable.description import Description

INFERENCE = "inference_model.onnx"
CHECKPOINTS = ("full", "nominal")
NAMELESS = Naming()


@dataclass(frozen=True)
class _Plan:
    """An inference model that is ready, and what is to be put behind it."""

    model: onnx.ModelProto
    objective: Objective
    input: Tensor
    target: Standardisation | None
    trainable: list[str]
    frozen: list[str]

    @property
    def output(self) -> Tensor:
        """Return the model's main output."""
        return self.objective.outputs[0]

    def training_graph(self) -> TrainingGraph:
        """The training graph made from this plan."""
        return TrainingGraph(
            self.with_loss(self.model),
            trainable=self.trainable,
            frozen=self.frozen,
            data=self.input,
            label=self.objective.label,
        )

    def with_loss(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A form of the model with the label as a further input and the loss as its only output."""
        made = copy.deepcopy(model)
        graph, label = made.graph, self.objective.label
        graph.input.append(value_info(label))
        read = label.name if self.target is None else standard_target(graph, label.name, self.target)
        scalar = self.objective.add_to(graph, read)
        # The inference outputs stay inside as they are: an export takes the graph from there.
        graph.value_info.extend(graph.output)
        del graph.output[:]
        graph.output.append(helper.make_tensor_value_info(scalar, TensorProto.FLOAT, []))
        return made


def build(
    model: onnx.ModelProto | Path,
    out: Path,
    *,
    loss: Given,
    optimizer: str | Optimizer = "adamw",
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
    standardise: Statistics | None = None,
    engine: str = "portable",
    seed: int | None = None,
    checkpoint: str = "full",
    external_above: int = MOST,
    add_note: Callable[[str], None] = lambda _: None,
    library: Path | None = None,
    naming: Naming = NAMELESS,
    rows: NDArray[np.float32] | None = None,
) -> Bundle:
    """Build a bundle from an inference model and publish it as directory `out`.

    The same input gives the same bytes. An older bundle at `out` is replaced, anything else is not.

    Parameters
    ----------
    model
        One float32 input `(batch, ...)` and one float32 output, or several for a function; logits for the
        classifying losses.
    out
        The bundle directory; its parent must exist.
    loss
        `cross_entropy`, `mse`, `bce_with_logits` or `l1`, the mean over the batch; a `CrossEntropy` with
        weights of classes; or a `FunctionLoss`.
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
        Engine the bundle is for: `portable` or `native`.
    seed
        Noted in the bundle: the seed the model was initialised from, and from which the portable engine
        draws the noise of its steps.
    naming
        Names and units of inputs and outputs; a device refuses a bundle that was built for others.
    checkpoint
        `full`, or `nominal`: without the values of parameters, which then are delivered apart, in
        `parameters.safetensors`.
    external_above
        Bytes of parameters from which on they are written into a file of their own, `checkpoint.data`.
    add_note
        Receives one line for each change of the model.
    library
        An ONNX file with functions for operators of the model that are not ONNX's own.
    rows
        Inputs `(n, ...)` on which the network must say the same as before, where it is not standardised;
        random ones when None.

    Raises
    ------
    ConfigError
        When loss, optimizer or engine is unknown, or a glob matches nothing.
    UnavailableError
        With engine `native` where onnxruntime-training is not installed.
    BundleError
        When the engine cannot train the model or it does not fit, or `out` is something else.
    StorageError
        When it cannot be written.
    """
    rule = Optimizer.of(optimizer) if isinstance(optimizer, str) else optimizer
    check_engine(engine)
    _check_choice(checkpoint, CHECKPOINTS, "checkpoint")
    refuse_foreign(out)
    functions = None if library is None else read_model(library)
    given = read_model(model, external_above)
    before, naming = read_model(given), naming.of_model(class_names(given.graph))
    made = conform(given, all_outputs=keeps_all_outputs(loss), library=functions, add_note=add_note)
    if standardise is None and library is None and not any(map(is_elsewhere, before.graph.initializer)):
        check_outputs(before, made, rows, add_note)
    made.producer_name = "edged"
    plan = _plan(made, loss, train, freeze, standardise, add_note)
    _refuse_obstacles(plan, rule, engine)
    with _staging(out) as staged:
        if engine == "native":
            onnxruntime_generator.generate(
                plan.with_loss(plan.model),
                trainable=plan.trainable,
                frozen=plan.frozen,
                optimizer=rule,
                out=staged,
            )
        raw_parameters(plan.model, (*plan.trainable, *plan.frozen))
        onnx.save(inference_form(plan.model), str(staged / INFERENCE))
        portable = _step_graph(plan, rule, staged, seed or 0) if engine == "portable" else None
        files = [INFERENCE, *(onnxruntime_generator.FILES if portable is None else portable.models.values())]
        described = replace(
            naming.put(_describe(plan, staged, rule.name, seed)),
            portable=None if portable is None else portable.to_json(),
            engine=engine,
            change_of=() if standardise is None else standardise.change_of,
        )
        added = _checkpoint(plan, staged, files, checkpoint, external_above)
        seal(described, [*files, *added])
        publish(staged, out)
    return Bundle.open(out, verify=False)


def check_engine(name: str) -> None:
    """Raise ConfigError when there is no such engine."""
    _check_choice(name, ENGINES, "engine")


def _check_choice(chosen: str, known: Sequence[str], where: str) -> None:
    if chosen not in known:
        raise ConfigError(f"there is no {where} {chosen!r}", where=where, remedy=f"one of {', '.join(known)}")


def _checkpoint(
    plan: _Plan, staged: Path, files: list[str], checkpoint: str, external_above: int
) -> list[str]:
    """Write the initial parameters; the file that holds them, where it is one of their own."""
    trainable, frozen = (values_of(plan.model.graph, names) for names in (plan.trainable, plan.frozen))
    held = TrainingCheckpoint(trainable, frozen, nominal=checkpoint == "nominal")
    path = staged / onnxruntime_generator.CHECKPOINT if onnxruntime_generator.CHECKPOINT in files else None
    if held.nominal or size_of(plan.model.graph, (*trainable, *frozen)) > external_above:
        return [set_apart(path, staged / INFERENCE, held)]
    if path is not None:
        path.write_bytes(dump(held))
    return []


def _refuse_obstacles(plan: _Plan, optimizer: Optimizer, engine: str) -> None:
    """Raise BundleError when the engine cannot train the planned model, or not with this optimizer."""
    judged = plan.with_loss(plan.model) if plan.objective.name == CUSTOM else plan.model
    if found := [*obstacles(judged, plan.trainable, engine), *lacking(optimizer, engine)]:
        raise refusal(found)


def _step_graph(plan: _Plan, optimizer: Optimizer, staged: Path, seed: int) -> Description:
    """Write the step graphs; return their description for `bundle.json`."""
    source = plan.training_graph()
    made = build_step_graph(source, plan.with_loss(inference_form(plan.model)), optimizer)
    return add_step_graph(staged, made, source, optimizer, base=staged / INFERENCE, seed=seed)


def _plan(
    model: onnx.ModelProto,
    loss: Given,
    train: Sequence[str],
    freeze: Sequence[str],
    statistics: Statistics | None,
    add_note: Callable[[str], None],
) -> _Plan:
    trainable, frozen = select(model.graph, train, freeze)
    _unique(model.graph)
    target = statistics.target_names if statistics is not None else None
    if followed := sorted(running_statistics(model.graph)):
        add_note(f"running statistics are frozen, no gradient trains them: {shortened(followed)}")
    own = [] if is_standardised(model.graph) else scaling_in_front(model.graph)
    if scaling := [name for name in own if name in frozen]:
        add_note(f"the scaling of the inputs is frozen; `--train '*'` trains it too: {shortened(scaling)}")
    if statistics is not None:
        standardise_model(model, statistics)
        frozen += [name for name in parameter_names(model.graph) if name not in (*trainable, *frozen)]
    give = [tensor_of(value) for value in model.graph.output]
    # A loss compares the main output with the label in the network's own units.
    compared = [give[0].name if target is None else STANDARD_OUTPUT, *(tensor.name for tensor in give[1:])]
    chosen = objective(model, give, compared, loss)
    warn_about_probabilities(model.graph, chosen.name, add_note)
    if target is not None and chosen.name not in (*MEASURING, CUSTOM):
        raise ConfigError(
            f"a class cannot be standardised: loss {chosen.name}", where="statistics.target_mean"
        )
    refuse_taken(model.graph, [chosen.label.name])
    return _Plan(model, chosen, tensor_of(model.graph.input[0]), target, trainable, frozen)


def _unique(graph: onnx.GraphProto) -> None:
    seen: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in seen:
            raise BundleError("two parameters have the same name", where=tensor.name)
        seen.add(tensor.name)


def _describe(plan: _Plan, staged: Path, optimizer: str, seed: int | None) -> Bundle:
    return Bundle(
        path=staged,
        edged=__version__,
        loss=plan.objective.name,
        loss_options=plan.objective.options,
        optimizer=optimizer,
        input=plan.input,
        output=plan.output,
        label=plan.objective.label,
        more_outputs=plan.objective.outputs[1:],
        trainable=tuple(plan.trainable),
        frozen=tuple(plan.frozen),
        standardise=INPUT if is_standardised(plan.model.graph) else None,
        target_standardise=plan.target,
        opset=opset_of(plan.model),
        seed=seed,
        made_with=made_with(),
    )


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A directory beside `out` in which the bundle is made; gone afterwards, whatever happens."""
    staged = staging_path(out.parent, out.name)
    try:
        staged.mkdir()  # its mode is the user's, within a state directory the daemon's
    except OSError as problem:
        raise BundleError(
            f"cannot write here: {problem.strerror}",
            where=str(out.parent),
            remedy="create the parent directory",
        ) from problem
    try:
        with disk_errors("building the bundle", out):
            yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)
