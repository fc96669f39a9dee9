"""Training with onnxruntime's on-device training API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edged.domain.bundle_contents import BundleContents
from edged.domain.protocols import Anchor, Labels, LearningRate, StepResult, labels_of
from edged.engines.native import api
from edged.engines.onnx.fields import input_names, whole_model, write_parameters
from edged.engines.runtime import ort
from edged.engines.runtime.lr_schedule import Schedule
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError, CorruptError, TrainingError, UnavailableError

STATE_FILE = "checkpoint"

Floats = NDArray[np.float32]

# numpy raises ValueError for rows that cannot be brought to the graph's shape.
_STEP_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError)


class NativeEngine:
    """Engine on CheckpointState, Module and Optimizer of `onnxruntime.training.api`.

    Batches are handed over as numpy arrays: for one-time batches that is faster than making OrtValues
    of them. Gradients of several steps with `apply=False` are added up, not averaged.

    Raises UnavailableError when onnxruntime-training is not installed; BundleError when the artifacts cannot
    be loaded.
    """

    name = "native"

    def __init__(self, bundle: BundleContents, *, threads: int = 1) -> None:
        self._api = api.load("api")
        self._bundle = bundle
        self._options = ort.session_options(threads)
        self._schedule = Schedule(LearningRate(1e-3))
        self._set_rate = math.nan
        self._flat = len(bundle.input.row) == 1
        try:
            self._open(bundle.checkpoint)
        except ort.ERRORS as problem:
            raise BundleError(
                f"the training artifacts cannot be loaded: {ort.one_line(problem)}",
                where=str(bundle.checkpoint.parent),
                remedy="check it with `edged artifacts verify`",
            ) from problem

    def _open(self, checkpoint: Path) -> None:
        # Module and Optimizer are bound to their state, so restoring makes all three anew.
        state = self._api.CheckpointState.load_checkpoint(str(checkpoint))
        training, evaluation = str(self._bundle.training_model), str(self._bundle.eval_model)
        module = self._api.Module(training, state, evaluation, session_options=self._options)
        if self._bundle.parameters_file is not None and checkpoint == self._bundle.checkpoint:
            _fill(module, self._bundle.training_model, self._bundle.parameters_file)
        # Only behind that: of a nominal state it would be one that ends the process at its first use.
        optimizer = self._api.Optimizer(str(self._bundle.optimizer_model), module)
        # Only now is anything changed: a failed restore leaves the engine as it was.
        self._state, self._module, self._optimizer, self._set_rate = state, module, optimizer, math.nan
        self._trainable = [parameter for _, parameter in state.parameters if parameter.requires_grad]

    def begin(self, rate: LearningRate, *, at_step: int = 0) -> None:
        """Start a learning-rate schedule, `at_step` updates into it when a run is resumed."""
        self._schedule = Schedule(rate, at_step)

    def guide(self, anchor: Anchor | None = None) -> None:
        """Raise UnavailableError for an anchor: upstream's training graph has no place for it."""
        if anchor is not None:
            raise UnavailableError(
                "the native engine knows no anchor weights",
                where="engine native",
                remedy="set training.engine to portable",
            )

    def step(self, x: Floats, y: Labels, *, apply: bool = True, careful: bool = False) -> StepResult:
        """One forward and backward pass; with `apply` also the update. See `Engine.step`.

        Raises TrainingError when the batch is empty or does not fit the graph.
        """
        try:
            loss = self._run(x, y)
        except TrainingError:
            self._module.lazy_reset_grad()
            raise
        if not math.isfinite(loss) or (careful and not self._gradients_are_finite()):
            self._module.lazy_reset_grad()
            return StepResult(loss, applied=False)
        if apply:
            self._update()
        return StepResult(loss, apply)

    def _run(self, x: Floats, y: Labels) -> float:
        if len(x) == 0:
            # The training graph would divide by the number of rows, which ends the process.
            raise ort.refused_batch(x, y, ValueError("the batch is empty"), self._bundle.training_model)
        try:
            rows = x if self._flat else x.reshape(-1, *self._bundle.input.row)
            return float(self._module(rows, *labels_of(y)))
        except _STEP_ERRORS as problem:
            raise ort.refused_batch(x, y, problem, self._bundle.training_model) from problem

    def _gradients_are_finite(self) -> bool:
        return all(np.isfinite(parameter.grad).all() for parameter in self._trainable)

    def _update(self) -> None:
        rate = self._schedule.advance()
        if rate != self._set_rate:
            self._optimizer.set_learning_rate(rate)
            self._set_rate = rate
        self._optimizer.step()
        self._module.lazy_reset_grad()

    def evaluate(self, x: Floats, y: Labels) -> float:
        """Loss without any update; raises TrainingError when the batch does not fit."""
        self._module.eval()
        try:
            return self._run(x, y)
        finally:
            self._module.train()

    def check(self) -> None:
        """Raise NonFiniteError when a parameter, trainable or frozen, is NaN or infinite."""
        if not np.isfinite(self._module.get_contiguous_parameters().numpy()).all():
            raise ort.not_finite(self.parameters(), self._bundle.training_model)

    def parameters(self) -> dict[str, Floats]:
        """Copies of all parameters by name, trainable and frozen."""
        return {name: np.array(parameter.data, np.float32) for name, parameter in self._state.parameters}

    def set_parameters(self, values: Mapping[str, Floats]) -> None:
        """Overwrite the named parameters; all are checked before the first is changed.

        Raises TrainingError when a name is unknown or a shape differs.
        """
        ready = {name: self._fitting(name, value) for name, value in values.items()}
        for name, value in ready.items():
            self._state.parameters[name] = value

    def _fitting(self, name: str, value: Floats) -> Floats:
        if name not in self._state.parameters:
            raise TrainingError("the model has no such parameter", where=name)
        shape = self._state.parameters[name].data.shape
        if np.shape(value) != shape:
            raise TrainingError(f"has shape {np.shape(value)}, the model takes {shape}", where=name)
        return np.array(value, np.float32, order="C")

    def save(self, directory: Path) -> None:
        """Write weights, optimizer state and learning-rate position into `directory`.

        Call it between updates: gradients that were only accumulated are not saved.
        """
        checkpoint = str(directory / STATE_FILE)
        try:
            self._api.CheckpointState.save_checkpoint(self._state, checkpoint, include_optimizer_state=True)
        except ort.ERRORS as problem:
            raise TrainingError(f"cannot save: {ort.one_line(problem)}", where=checkpoint) from problem
        self._schedule.save(directory)

    def restore(self, directory: Path) -> None:
        """Read back what `save` wrote; the next step continues bit-exactly.

        Raises CorruptError when a file is missing or cannot be read; the engine then is as it was.
        """
        schedule, _ = Schedule.restore(directory)
        try:
            self._open(directory / STATE_FILE)
        except ort.ERRORS as problem:
            where = str(directory / STATE_FILE)
            raise CorruptError(f"cannot be restored: {ort.one_line(problem)}", where=where) from problem
        self._schedule = schedule

    def export(self, path: Path) -> None:
        """Write the inference model with the present weights, in raw units, to `path`.

        The file is written in place: publishing it is the caller's part.
        """
        if self._bundle.inference_model.is_file():
            # Upstream exports its evaluation graph, which is of the opset that is trained in.
            self._export_whole(path)
            return
        try:
            self._module.export_model_for_inferencing(str(path), list(self._bundle.output_names))
        except ort.ERRORS as problem:
            raise TrainingError(f"cannot export: {ort.one_line(problem)}", where=str(path)) from problem

    def _export_whole(self, path: Path) -> None:
        values = self.parameters()
        content = bytearray(whole_model(self._bundle.inference_model, values))
        write_parameters(content, values)
        try:
            path.write_bytes(content)
        except OSError as problem:
            raise TrainingError(f"cannot export: {problem.strerror}", where=str(path)) from problem


def _fill(module: Any, training_model: Path, file: Path) -> None:
    """Copy the parameters in `file` into a `Module` of onnxruntime's whose state is nominal.

    It takes them as one vector, in the order in which the training graph does.

    Raises BundleError when the file is missing or damaged, or is not for this model.
    """
    try:
        held = load_file(file)
        names = input_names(training_model.read_bytes())
    except (OSError, SafetensorError, ValueError, IndexError) as problem:
        raise BundleError(
            "the parameters of this nominal bundle cannot be read",
            where=str(file),
            remedy="put the file that it was built with beside it",
        ) from problem
    flat = [held[name].reshape(-1) for name in names if name in held]
    buffer = np.concatenate(flat, dtype=np.float32) if flat else np.empty(0, np.float32)
    if len(buffer) != module.get_parameters_size(False):
        raise BundleError("holds the parameters of another model", where=str(file))
    value = onnxruntime.OrtValue.ortvalue_from_numpy(buffer)
    # Upstream's own type hint says OrtValue, and its binding takes what is inside.
    module.copy_buffer_to_parameters(value._ortvalue, trainable_only=False)  # noqa: SLF001
