"""Building a bundle: from an inference model to everything a device needs to train it."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from edged import __version__
from edged.bundles.autodiff.shapes import sizes_of
from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import AddNote, opset_of, refuse_taken, shortened, tensor_of, value_info
from edged.bundles.graph.external_data import set_apart, values_of
from edged.bundles.graph.naming import made_with
from edged.bundles.inspect import BundleReport, inspect
from edged.bundles.losses.objective import Objective, keeps_all_outputs, objective
from edged.bundles.preflight import Obstacle, lacking, obstacles, refusal, refuse_other_rows
from edged.bundles.request import BuildRequest, statistics_of
from edged.bundles.source.axes import check_outputs, fix_sequence
from edged.bundles.source.classifiers import class_names, warn_about_probabilities
from edged.bundles.source.normalise import conform, parameter_names, read_model
from edged.bundles.source.opset import trainable_form
from edged.bundles.source.standardise import (
    INPUT,
    STANDARD_OUTPUT,
    is_standardised,
    scaling_in_front,
    standard_target,
    standardise_model,
)
from edged.bundles.source.trainable import select
from edged.bundles.source.training_mode import inference_form, running_statistics
from edged.bundles.step_graph.builder import Differentiated
from edged.bundles.step_graph.portable import add_step_graph, raw_parameters
from edged.bundles.step_graph.training_graph import TrainingGraph
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message
from edged.engines.native.checkpoint import TrainingCheckpoint, dump
from edged.engines.portable.description import Description
from edged.errors import BundleError, ConfigError
from edged.storage.files.atomic import disk_errors, staging_path
from edged.storage.models.bundles import CUSTOM, MEASURING, Bundle, publish, refuse_foreign, seal

INFERENCE = "inference_model.onnx"


def build(request: BuildRequest, out: Path, add_note: AddNote = lambda _: None) -> Bundle:
    """Build a bundle and publish it as directory `out`, whose parent must exist.

    An older bundle at `out` is replaced, anything else is not. `add_note` receives one line for each change
    of the model.

    Raises
    ------
    ConfigError
        When a glob matches nothing, or data and names do not fit the model.
    UnavailableError
        With engine `native` where onnxruntime-training is not installed.
    BundleError
        When the engine cannot train the model or it does not fit, or `out` is something else.
    StorageError
        When it cannot be written.
    """
    refuse_foreign(out)
    plan = _Plan(request, add_note)
    if plan.obstacles:
        raise refusal(plan.obstacles)
    with _staging(out) as staged:
        plan.write(staged)
        publish(staged, out)
    return Bundle.open(out, verify=False)


_LISTED = ("input", "output", "label", "parameters", "trainable_size", "frozen_size", "files", "bytes")


@dataclass(frozen=True)
class BuildCheck(Message):
    """Result of a check: if an engine can train a model, the obstacles, and the bundle made of it."""

    ok: bool
    engine: str
    findings: tuple[Obstacle, ...]
    notes: tuple[str, ...]
    bundle: BundleReport | None = None  # None where none could be made

    def to_json(self) -> JsonObject:
        """Return the fields, and beside them those of the bundle that are about its contents."""
        made = {} if self.bundle is None else self.bundle.to_json()
        return {**self.without("bundle"), **{name: made[name] for name in _LISTED if name in made}}


def check(request: BuildRequest) -> BuildCheck:
    """Return what a build would make of a request, or why it would not; the bundle is temporary.

    Raises ConfigError and UnavailableError as `build`.
    """
    notes: list[str] = []
    try:
        plan = _Plan(request, notes.append)
        if plan.obstacles:
            return BuildCheck(False, request.engine, tuple(plan.obstacles), tuple(notes))
        with tempfile.TemporaryDirectory() as folder:
            plan.write(Path(folder))
            return BuildCheck(True, request.engine, (), tuple(notes), inspect(Path(folder)))
    except BundleError as problem:
        return BuildCheck(False, request.engine, (Obstacle.of(problem),), tuple(notes))


class _Plan:
    """An inference model that is ready, its loss and gradients, and what stands in the way of training."""

    def __init__(self, request: BuildRequest, add_note: AddNote) -> None:
        self.request = request
        library = None if request.library is None else read_model(request.library)
        given = read_model(request.model)
        if request.sequence is not None:
            fix_sequence(given, request.sequence, add_note)
        self.statistics, rows = statistics_of(given, request, add_note)
        self.naming = request.naming.of_model(class_names(given.graph))
        before = copy.deepcopy(given)
        self.model = conform(
            given, all_outputs=keeps_all_outputs(request.loss), library=library, add_note=add_note
        )
        if self.statistics is None and library is None:
            check_outputs(before, self.model, rows, add_note)
        self.model.producer_name = "edged"
        self.trainable, self.frozen = self._selected(add_note)
        self.trained = trainable_form(self.model)
        self.target = None if self.statistics is None else self.statistics.target_names
        self.objective = self._objective(add_note)
        self.input = tensor_of(self.model.graph.input[0])
        self.network = self._with_loss()
        self.gradients = self._differentiate()
        self.obstacles = self._obstacles()

    def write(self, folder: Path) -> None:
        """Write the files of the bundle into a directory."""
        request, portable = self.request, None
        self.gradients.source.refuse_idle()
        if request.engine == "native":
            onnxruntime_generator.generate(
                self.network,
                trainable=self.trainable,
                frozen=self.frozen,
                optimizer=request.optimizer,
                out=folder,
            )
        raw_parameters(self.model, (*self.trainable, *self.frozen))
        onnx.save(inference_form(self.model), str(folder / INFERENCE))
        if request.engine == "portable":
            steps = self.gradients.steps(inference_form(self.network), request.optimizer)
            portable = add_step_graph(
                folder, steps, self.gradients.source, request.optimizer, seed=request.seed or 0
            )
        files = [INFERENCE, *(onnxruntime_generator.FILES if portable is None else portable.models.values())]
        added = self._write_parameters(folder, files)
        seal(self._description(folder, portable), [*files, *added])

    def _selected(self, add_note: AddNote) -> tuple[list[str], list[str]]:
        """Return trainable and frozen parameters, and put the standardisation in front."""
        graph, request = self.model.graph, self.request
        trainable, frozen = select(graph, request.train, request.freeze)
        _refuse_twins(graph)
        if followed := sorted(running_statistics(graph)):
            add_note(f"running statistics are frozen, no gradient trains them: {shortened(followed)}")
        own = [] if is_standardised(graph) else scaling_in_front(graph)
        if scaling := [name for name in own if name in frozen]:
            add_note(
                f"the scaling of the inputs is frozen; `--train '*'` trains it too: {shortened(scaling)}"
            )
        if self.statistics is not None:
            standardise_model(self.model, self.statistics)
            frozen += [name for name in parameter_names(graph) if name not in (*trainable, *frozen)]
        return trainable, frozen

    def _objective(self, add_note: AddNote) -> Objective:
        graph = self.model.graph
        give = [tensor_of(value) for value in graph.output]
        # A loss compares the main output with the label in the network's own units.
        main = give[0].name if self.target is None else STANDARD_OUTPUT
        compared = [main, *(tensor.name for tensor in give[1:])]
        chosen = objective(self.trained, give, compared, self.request.loss)
        warn_about_probabilities(graph, chosen.name, add_note)
        if self.target is not None and chosen.name not in (*MEASURING, CUSTOM):
            raise ConfigError(
                f"a class cannot be standardised: loss {chosen.name}", where="statistics.target_mean"
            )
        refuse_taken(graph, [chosen.label.name])
        return chosen

    def _with_loss(self) -> onnx.ModelProto:
        """Copy the model, with the label as a further input and the loss as its only output."""
        made = copy.deepcopy(self.trained)
        graph, label = made.graph, self.objective.label
        graph.input.append(value_info(label))
        read = label.name if self.target is None else standard_target(graph, label.name, self.target)
        scalar = self.objective.add_to(graph, read)
        # The inference outputs stay inside as they are: an export takes the graph from there.
        graph.value_info.extend(graph.output)
        del graph.output[:]
        graph.output.append(helper.make_tensor_value_info(scalar, TensorProto.FLOAT, []))
        return made

    def _differentiate(self) -> Differentiated:
        outputs = self.objective.outputs
        try:
            source = TrainingGraph(
                self.network,
                trainable=self.trainable,
                frozen=self.frozen,
                data=self.input,
                label=self.objective.label,
            )
        except BundleError:
            refuse_other_rows(sizes_of(self.model), outputs)  # the likely cause
            raise
        refuse_other_rows(source.info.dims, outputs)
        return Differentiated(source)

    def _obstacles(self) -> list[Obstacle]:
        request, refused = self.request, self.gradients.refused
        judged = self.network if self.objective.name == CUSTOM else self.trained
        found = [
            *obstacles(judged, refused, self.trainable, request.engine),
            *lacking(request.optimizer, request.engine),
        ]
        if refused and not found:  # in a named loss
            raise next(iter(refused.values()))
        return found

    def _write_parameters(self, folder: Path, files: list[str]) -> list[str]:
        """Write the initial parameters; return the file that holds them, where it is one of their own."""
        trainable, frozen = (values_of(self.model.graph, names) for names in (self.trainable, self.frozen))
        held = TrainingCheckpoint(trainable, frozen, nominal=self.request.checkpoint == "nominal")
        name = onnxruntime_generator.CHECKPOINT
        path = folder / name if name in files else None
        if held.nominal:
            return [set_apart(path, folder / INFERENCE, held)]
        if path is not None:
            path.write_bytes(dump(held))
        return []

    def _description(self, folder: Path, portable: Description | None) -> Bundle:
        outputs, request = self.objective.outputs, self.request
        return self.naming.put(Bundle(
            path=folder,
            edged=__version__,
            loss=self.objective.name,
            loss_options=self.objective.options,
            optimizer=request.optimizer.name,
            input=self.input,
            output=outputs[0],
            label=self.objective.label,
            more_outputs=outputs[1:],
            trainable=tuple(self.trainable),
            frozen=tuple(self.frozen),
            standardise=INPUT if is_standardised(self.model.graph) else None,
            target_standardise=self.target,
            change_of=() if self.statistics is None else self.statistics.change_of,
            opset=opset_of(self.model),
            seed=request.seed,
            made_with=made_with(),
            portable=None if portable is None else portable.to_json(),
            engine=request.engine,
        ))  # fmt: skip


def _refuse_twins(graph: onnx.GraphProto) -> None:
    seen: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in seen:
            raise BundleError("two parameters have the same name", where=tensor.name)
        seen.add(tensor.name)


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
