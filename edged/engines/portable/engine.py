"""Training on any onnxruntime: the step graph of the bundle, run as an ordinary model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import REBUILD, BundleContents
from edged.domain.protocols import Anchor, Labels, LearningRate, StepResult, labels_of
from edged.engines.model_parameters import BaseModel
from edged.engines.portable import state
from edged.engines.portable.buffers import StateBuffers, noise_of
from edged.engines.portable.description import Description
from edged.engines.portable.graphs import RUN_ERRORS, Graphs
from edged.engines.portable.state import Prefetch, SavedState
from edged.engines.runtime import ort
from edged.engines.runtime.lr_schedule import Schedule
from edged.engines.runtime.ort import CPU, check
from edged.errors import CorruptError, TrainingError

STEP_ERRORS: tuple[type[Exception], ...] = (*RUN_ERRORS, TrainingError)

Floats = NDArray[np.float32]


class PortableEngine:
    """Engine on the step graph, which holds forward and backward pass and the optimizer's update.

    The state (parameters and moments) is kept twice. A step reads one copy and writes the other; they
    change places only when loss and gradients were finite, so a bad batch changes nothing and a good one
    costs no copying. Gradients of several steps with `apply=False` are added up, not averaged.

    Parameters
    ----------
    bundle
        What is trained.
    threads
        Threads of one training step, at most: a network of small operators uses one.
    providers
        Execution providers by onnxruntime's names, the preferred one first. The state stays in the CPU's
        memory; onnxruntime copies what a provider has to have in its own.

    Raises
    ------
    ConfigError
        When this onnxruntime has no such provider.
    UnavailableError
        When the bundle has no step graph, or this machine cannot use a provider.
    BundleError, CorruptError
        When its files cannot be loaded.
    """

    name = "portable"

    def __init__(self, bundle: BundleContents, *, threads: int = 1, providers: Sequence[str] = CPU) -> None:
        check(providers, "training.provider")
        self._bundle, self._row = bundle, bundle.input.row
        self._flat = len(self._row) == 1
        self._description = Description.of(bundle)
        self._base = BaseModel(bundle)
        self._schedule = Schedule(LearningRate(1e-3))
        self._memory = StateBuffers(self._description)
        self._ahead = Prefetch(self._description.optimizer, list(self._description.scalars))
        self._noise = self._description.noise if self._description.noise.width else None
        self._updates = self._parts = 0
        self._tended = self._description.optimizer.tended_after(0)
        self._guided = False
        self._plain = self._flat and self._noise is None
        initial = self._base.parameters()
        if {name: value.shape for name, value in initial.items()} != self._description.shapes:
            what = "bundle.json gives parameters other shapes than the model"
            raise CorruptError(what, where=str(bundle.path), remedy=REBUILD)
        self._put_all(initial)
        self._graphs = Graphs(bundle, self._description, self._memory, threads, providers)

    # ---- training ----------------------------------------------------------------------------

    def begin(self, rate: LearningRate, *, at_step: int = 0) -> None:
        """Start a learning-rate schedule, `at_step` updates into it when a run is resumed."""
        self._schedule = Schedule(rate, at_step)
        self._ahead.forget()

    def step(
        self,
        x: Floats,
        y: Labels,
        *,
        apply: bool = True,
        careful: bool = True,
        weights: Floats | None = None,
    ) -> StepResult:
        """One forward and backward pass; with `apply` also the update. See `Engine.step`.

        Gradients are always looked at, `careful` or not: the graph sums their squares anyway. `weights`
        `(n,)` say how much each row counts against the others, 0 for one that is only padding.

        Raises TrainingError when the batch is empty or does not fit the graph, or no row has a weight.
        """
        del careful
        memory = self._memory
        scale, memory.prepared[...] = self._ahead.of(self._updates + 1, self._schedule)
        plain = self._plain and apply and weights is None and not self._parts
        try:
            if plain and isinstance(y, np.ndarray):
                # Most steps are like this, and each further call would cost a small one 1 % of its time.
                self._graphs.step.run_pair(memory.side, scale / (len(x) or 1), x, y)
            else:
                self._run_other(x, y, apply, weights, scale)
        except STEP_ERRORS as problem:
            self._forget_gradients()
            if np.isfinite(x).all() and memory.are_finite():
                raise self._refused(x, y, problem) from problem
            # The graph failed on numbers that are not finite: the largest of nothing but NaN is nowhere.
            return StepResult(math.nan, applied=False)
        scaled, squares = memory.step_results.tolist()
        loss = scaled / scale
        if not math.isfinite(loss + squares):
            self._forget_gradients()
            return StepResult(loss, applied=False)
        if not apply:
            self._parts += 1
            memory.keep_gradients()
            return StepResult(loss, applied=False)
        memory.accept()
        self._schedule.step += 1
        self._updates = updates = self._updates + 1
        if updates == self._tended:
            memory.tend(updates)
            self._tended = self._description.optimizer.tended_after(updates)
        if self._parts:
            self._forget_gradients()
        return StepResult(loss, True)

    def _run_other(self, x: Floats, y: Labels, apply: bool, weights: Floats | None, scale: float) -> None:
        """Run a step in parts, or one with weights, noise, an anchor, or several labels."""
        graphs = self._graphs
        weight = scale / (len(x) or 1) if weights is None else self._weights(weights, scale)
        rows = self._rows(x, y)
        if self._noise is not None:
            rows.append(noise_of(self._noise, len(x), self._updates, self._parts))
        program = graphs.step if apply and not self._parts else graphs.carry
        if self._guided:
            self._memory.anchor.prepare(scale)
            program = graphs.guided
        program.run(self._memory.side, weight, *rows)

    def _rows(self, x: Floats, y: Labels) -> list[np.ndarray]:
        """Data and labels in the shape that the graphs take."""
        return [x if self._flat else x.reshape(-1, *self._row), *labels_of(y)]

    def _refused(self, x: Floats, y: Labels, problem: Exception) -> TrainingError:
        if isinstance(problem, TrainingError):
            return problem
        return ort.refused_batch(x, y, problem, self._graphs.path("step"))

    def guide(self, anchor: Anchor | None = None) -> None:
        """Pull the following steps to anchor weights. See `Engine.guide`.

        Gradients that were only accumulated stay.

        Raises TrainingError when the anchor does not fit the trainable parameters, or its strength is out of
        range.
        """
        if anchor is not None:
            self._memory.anchor.set(anchor)
        self._guided = anchor is not None
        self._plain = self._flat and self._noise is None and not self._guided

    def _weights(self, weights: Floats, scale: float) -> Floats:
        """How much of the loss each row is, `(n, 1)`, together `scale`."""
        given = np.asarray(weights, np.float64).reshape(-1, 1)
        total = float(given.sum())
        if not (given >= 0).all() or not 0 < total < math.inf:
            raise TrainingError(
                "the weights of rows must be finite, 0 or more, and not all 0", where="weights"
            )
        return (given * (scale / total)).astype(np.float32)

    def _forget_gradients(self) -> None:
        if self._parts:
            self._parts = 0
            self._memory.forget_gradients()

    def evaluate(self, x: Floats, y: Labels) -> float:
        """Loss without any update; raises TrainingError when the batch does not fit."""
        try:
            self._graphs.evaluation.run(self._memory.side, 1.0, *self._rows(x, y))
        except RUN_ERRORS as problem:
            raise self._refused(x, y, problem) from problem
        return float(self._memory.judged)

    def check(self) -> None:
        """Raise NonFiniteError when a parameter, trainable or frozen, is NaN or infinite."""
        if not self._memory.are_finite():
            raise ort.not_finite(self.parameters(), self._graphs.path("step"))

    # ---- parameters --------------------------------------------------------------------------

    def parameters(self) -> dict[str, Floats]:
        """Copies of all parameters by name, trainable and frozen."""
        return {name: self._memory.view(name).copy() for name in self._description.shapes}

    def set_parameters(self, values: Mapping[str, Floats]) -> None:
        """Overwrite the named parameters; all are checked before the first is changed.

        Raises TrainingError when a name is unknown or a shape differs.
        """
        for name, value in values.items():
            self._check_fit(name, value)
        self._put_all({name: np.asarray(value, np.float32) for name, value in values.items()})

    def _check_fit(self, name: str, value: Floats) -> None:
        if name not in self._description.shapes:
            raise TrainingError("the model has no such parameter", where=name)
        shape = self._description.shapes[name]
        if np.shape(value) != shape:
            raise TrainingError(f"has shape {np.shape(value)}, the model takes {shape}", where=name)

    def _put_all(self, values: Mapping[str, Floats], kind: str = "value") -> None:
        for name, value in values.items():
            self._memory.view(name, kind)[...] = value

    # ---- files -------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write weights, optimizer state and learning-rate position into `directory`.

        Call it between updates: gradients that were only accumulated are not saved.
        """
        moments = self._description.optimizer.kinds[1:]
        saved = SavedState(
            self.parameters(),
            {
                kind: {name: self._memory.view(name, kind).copy() for name in self._description.places}
                for kind in moments
            },
        )
        try:
            state.write(directory, saved)
            self._schedule.save(directory, updates=self._updates)
        except OSError as problem:
            raise TrainingError(f"cannot save: {problem.strerror}", where=str(directory)) from problem

    def restore(self, directory: Path) -> None:
        """Read back what `save` wrote; the next step continues bit-exactly.

        Raises CorruptError when a file is missing or cannot be read; the engine then is as it was.
        """
        schedule, updates = Schedule.restore(directory)
        saved = state.read(directory, self._description)
        # Only now is anything changed.
        self._schedule, self._updates = schedule, updates
        self._tended = self._description.optimizer.tended_after(self._updates)
        self._ahead.forget()
        self._forget_gradients()
        self._put_all(saved.parameters)
        for kind, values in saved.moments.items():
            self._put_all(values, kind)

    def export(self, path: Path) -> None:
        """Write the inference model with the present weights, in raw units, to `path`.

        The file is written in place: publishing it is the caller's part.
        """
        content = self._base.with_parameters(self.parameters())
        try:
            path.write_bytes(content)
        except OSError as problem:
            raise TrainingError(f"cannot export: {problem.strerror}", where=str(path)) from problem
