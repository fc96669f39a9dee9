"""Training on any onnxruntime: the step graph of the bundle, run as an ordinary model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.protocols import LearningRate, Step
from edged.engines import ort, portable_state
from edged.engines.portable_files import BaseModel, Description
from edged.engines.portable_state import Saved
from edged.engines.program import Program
from edged.engines.schedule import Schedule, rate_at
from edged.errors import BundleError, CorruptError, NonFiniteError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edged.engines.portable_files import PortableFiles

POSITION_FILE = "engine.json"

Floats = NDArray[np.float32]

_STEP_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError)


class PortableEngine:
    """Engine on the step graph, which holds forward and backward pass and the optimizer's update.

    The state (parameters and moments) is kept twice. A step reads one copy and writes the other; they
    change places only when loss and gradients were finite, so a bad batch changes nothing and a good one
    costs no copying. Gradients of several steps with `apply=False` are added up, not averaged.

    Parameters
    ----------
    files
        The bundle, or anything else with the same paths and description.
    threads
        Threads of one training step.

    Raises
    ------
    UnavailableError
        When the bundle has no step graph.
    BundleError, CorruptError
        When its files cannot be loaded.
    """

    name = "portable"

    def __init__(self, files: PortableFiles, *, threads: int = 1) -> None:
        self._files, self._threads, self._row = files, threads, files.input_row
        self._told = Description.of(files)
        self._base = BaseModel(files, self._told)
        self._schedule = Schedule(LearningRate(1e-3))
        self._allocate()
        self._updates = self._side = 0
        self._carrying = False
        self._put_all(self._base.parameters())
        self._uniform = np.zeros((0, 1), np.float32)
        self._row_names = self._data_names()
        self._step = self._program("step", self._step_sides())

    def _allocate(self) -> None:
        told = self._told
        self._states: list[dict[str, list[Floats]]] = [
            {kind: [np.zeros(shape, np.float32) for _, shape in told.groups] for kind in told.rule.kinds}
            for _ in range(2)
        ]
        self._carry, self._carried = (
            [np.zeros(shape, np.float32) for _, shape in told.groups] for _ in range(2)
        )
        self._frozen = {name: np.zeros(shape, np.float32) for name, shape in told.frozen.items()}
        self._loss, self._squares = np.zeros(1, np.float32), np.zeros((), np.float32)
        self._size, self._judged = np.zeros((), np.float32), np.zeros((), np.float32)

    def _data_names(self) -> list[str]:
        return [str(self._files.portable[key]) for key in ("data", "label")] if self._files.portable else []

    # ---- programs ----------------------------------------------------------------------------

    def _program(self, model: str, sides: list[Any], *, weighted: bool = True) -> Program:
        path = self._files.path / self._told.models[model]
        rows = [*self._row_names, self._told.weights] if weighted else self._row_names
        try:
            return Program(path, self._threads, rows, sides)
        except _STEP_ERRORS as problem:
            raise BundleError(
                f"the step graph cannot be loaded: {ort.one_line(problem)}",
                where=str(path),
                remedy="check it with `edged artifacts verify`",
            ) from problem

    def _step_sides(self) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        told = self._told
        return [
            (
                {told.step_size: self._size, **self._frozen, **self._named(self._states[side])},
                {
                    told.loss: self._loss,
                    told.squares: self._squares,
                    **self._named(self._states[1 - side], "new_"),
                },
            )
            for side in range(2)
        ]

    def _named(self, state: Mapping[str, list[Floats]], prefix: str = "") -> dict[str, Floats]:
        return {
            f"{name}.{prefix}{kind}": arrays[i]
            for kind, arrays in state.items()
            for i, (name, _) in enumerate(self._told.groups)
        }

    @cached_property
    def _with_carry(self) -> Program:
        """The step with gradients that earlier ones left; loaded when gradients are first accumulated."""
        carry, carried = self._named({"carry": self._carry}), self._named({"carried": self._carried})
        return self._program(
            "carry", [({**takes, **carry}, {**gives, **carried}) for takes, gives in self._step_sides()]
        )

    @cached_property
    def _evaluation(self) -> Program:
        outputs = {self._told.loss: self._judged}
        sides = [
            ({**self._frozen, **self._named({"value": state["value"]})}, outputs) for state in self._states
        ]
        return self._program("evaluation", sides, weighted=False)

    # ---- training ----------------------------------------------------------------------------

    def begin(self, rate: LearningRate, *, at_step: int = 0) -> None:
        """Start a learning-rate schedule, `at_step` updates into it when a run is resumed."""
        self._schedule = Schedule(rate, at_step)

    def step(
        self,
        x: Floats,
        y: NDArray[np.generic],
        *,
        apply: bool = True,
        careful: bool = True,
        weights: Floats | None = None,
    ) -> Step:
        """One forward and backward pass; with `apply` also the update. See `Engine.step`.

        Gradients are always looked at, `careful` or not: the graph sums their squares anyway. `weights`
        `(n,)` say how much each row counts against the others, 0 for one that is only padding.

        Raises
        ------
        TrainingError
            When the batch is empty or does not fit the graph, or no row has a weight.
        """
        del careful
        carrying = self._carrying or not apply
        self._size[...] = self._step_size()
        try:
            program = self._with_carry if carrying else self._step
            self._run(program, x, y, self._weights(len(x), weights))
        except TrainingError:
            self._forget_gradients()
            raise
        loss = float(self._loss[0])
        if not math.isfinite(loss) or not math.isfinite(self._squares):
            self._forget_gradients()
            return Step(loss, applied=False)
        if apply:
            self._accept()
        else:
            self._keep_gradients()
        return Step(loss, apply)

    def _step_size(self) -> float:
        rate = rate_at(self._schedule.rate, self._schedule.step)
        return self._told.rule.step_size(rate, self._updates + 1)

    def _weights(self, n: int, weights: Floats | None) -> Floats:
        """How much of the loss each row is, `(n, 1)`; together 1."""
        if weights is None:
            if len(self._uniform) != n:
                self._uniform = np.full((n, 1), 1 / max(1, n), np.float32)
            return self._uniform
        given = np.asarray(weights, np.float64).reshape(-1, 1)
        total = float(given.sum())
        if not (given >= 0).all() or not 0 < total < math.inf:
            raise TrainingError(
                "the weights of rows must be finite, 0 or more, and not all 0", where="weights"
            )
        return (given / total).astype(np.float32)

    def _run(self, program: Program, x: Floats, y: NDArray[np.generic], *rest: Floats) -> None:
        try:
            rows = x if len(self._row) == 1 else x.reshape(-1, *self._row)
            program.run(self._side, rows, y, *rest)
        except _STEP_ERRORS as problem:
            batch = f"input {x.dtype}{list(x.shape)}, label {y.dtype}{list(y.shape)}"
            raise TrainingError(
                f"the training graph refuses a batch ({batch}): {ort.one_line(problem)}",
                where=str(self._files.path / self._told.models["step"]),
                remedy="the shapes and types it takes are in bundle.json",
            ) from problem

    def _accept(self) -> None:
        self._side = 1 - self._side
        self._updates += 1
        self._schedule.advance()
        self._forget_gradients()

    def _keep_gradients(self) -> None:
        self._carrying = True
        for mine, new in zip(self._carry, self._carried, strict=True):
            mine[...] = new

    def _forget_gradients(self) -> None:
        if self._carrying:
            self._carrying = False
            for gradient in self._carry:
                gradient.fill(0)

    def evaluate(self, x: Floats, y: NDArray[np.generic]) -> float:
        """Loss without any update; raises TrainingError when the batch does not fit."""
        self._run(self._evaluation, x, y)
        return float(self._judged)

    def check(self) -> None:
        """Raise NonFiniteError when a parameter, trainable or frozen, is NaN or infinite."""
        values = [*self._states[self._side]["value"], *self._frozen.values()]
        if all(np.isfinite(value).all() for value in values):
            return
        bad = [name for name, value in self.parameters().items() if not np.isfinite(value).all()]
        raise NonFiniteError(
            f"weights are no longer finite: {', '.join(bad[:3])}",
            where=str(self._files.path / self._told.models["step"]),
            remedy="lower training.learning_rate, or look for samples far outside the usual range",
        )

    # ---- parameters --------------------------------------------------------------------------

    def parameters(self) -> dict[str, Floats]:
        """Copies of all parameters by name, trainable and frozen."""
        return {name: self._view(name).copy() for name in self._told.shapes}

    def _view(self, name: str, kind: str = "value") -> Floats:
        if name in self._frozen:
            return self._frozen[name]
        return self._told.places[name].of(self._states[self._side][kind])

    def set_parameters(self, values: Mapping[str, Floats]) -> None:
        """Overwrite the named parameters; all are checked before the first is changed.

        Raises
        ------
        TrainingError
            When a name is unknown or a shape differs.
        """
        for name, value in values.items():
            self._check_fit(name, value)
        self._put_all({name: np.asarray(value, np.float32) for name, value in values.items()})

    def _check_fit(self, name: str, value: Floats) -> None:
        if name not in self._told.shapes:
            raise TrainingError("the model has no such parameter", where=name)
        shape = self._told.shapes[name]
        if np.shape(value) != shape:
            raise TrainingError(f"has shape {np.shape(value)}, the model takes {shape}", where=name)

    def _put_all(self, values: Mapping[str, Floats], kind: str = "value") -> None:
        for name, value in values.items():
            self._view(name, kind)[...] = value

    # ---- files -------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write weights, optimizer state and learning-rate position into `directory`.

        Where the bundle is for the native engine too, a checkpoint in its format is written besides, so
        that it can go on from here. Call it between updates: gradients that were only accumulated are
        not saved.
        """
        moments = self._told.rule.kinds[1:]
        saved = Saved(
            self.parameters(),
            {kind: {name: self._view(name, kind).copy() for name in self._told.places} for kind in moments},
            self._updates,
        )
        position = {"rate": asdict(self._schedule.rate), "step": self._schedule.step}
        try:
            portable_state.write(directory, saved, self._told, native="native" in self._files.engines)
            text = json.dumps(position | {"updates": self._updates})
            (directory / POSITION_FILE).write_text(text, encoding="utf-8")
        except OSError as problem:
            raise TrainingError(f"cannot save: {problem.strerror}", where=str(directory)) from problem

    def restore(self, directory: Path) -> None:
        """Read back what `save` wrote, here or in the native engine; the next step continues.

        What this engine saved continues bit-exactly.

        Raises
        ------
        CorruptError
            When a file is missing or cannot be read; the engine then is as it was.
        """
        schedule, updates = _read_position(directory / POSITION_FILE)
        saved = portable_state.read(directory, self._told, updates)
        # Only now is anything changed.
        self._schedule, self._updates = schedule, saved.updates
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


def _read_position(path: Path) -> tuple[Schedule, int]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Schedule(LearningRate(**data["rate"]), int(data["step"])), int(data.get("updates", 0))
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise CorruptError("is missing or damaged", where=str(path)) from problem
