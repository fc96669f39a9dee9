"""The state of learning, restored from checkpoints and stored in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edged.domain.protocols import Engine, RunControl
from edged.domain.stream.running_statistics import fitted, scale_of
from edged.domain.stream.sample import Window
from edged.domain.training.learner_state import Average, LearnerState, RunPlan
from edged.domain.training.trainer_messages import CheckpointWritten, DamagedCheckpoint, LogLine
from edged.domain.training.training_run import Base
from edged.errors import NonFiniteError
from edged.storage.files.atomic import disk_errors_of_others
from edged.storage.models.checkpoints import Checkpoints, Generation
from edged.trainer.local_models import LocalModels
from edged.trainer.task import LearningTask


class Learner:
    """An engine, and the state that belongs to its weights.

    `statistics` are those of inputs and targets among the engine's parameters; `untrained` says that the
    weights are random ones that a bundle was built with.
    """

    def __init__(
        self,
        task: LearningTask,
        engine: Engine,
        checkpoints: Checkpoints,
        models: LocalModels,
        control: RunControl,
    ) -> None:
        self._task, self._checkpoints, self._models, self._control = task, checkpoints, models, control
        self.engine = engine
        self.state = LearnerState.fresh(task.memory, task.training.constants.seed)
        self.statistics = InputStatistics(task, engine)
        self.untrained = task.bundle.seed is not None
        self._dry_run = False
        self._generation: int | None = None
        self._followed = 0

    def restore(self, base: Base) -> None:
        """Restore the newest valid checkpoint; on another `base`, without its weights.

        Raises TrainingError when the base is the champion, and no model is served.
        """
        generation = self._checkpoints.latest()
        for damaged in self._checkpoints.damaged:
            self._control.report(DamagedCheckpoint(damaged))
        if generation is not None and generation.state.get("bundle") != self._task.bundle.fingerprint:
            self._control.report(LogLine("checkpoints belong to another bundle; starting from this one"))
            self._followed = -1
        elif generation is not None and base == "checkpoint":
            self._restore(generation)
        elif generation is not None:
            self._load(generation)
            self.state.with_new_weights(self._task.memory)
        if base == "champion":
            self.engine.set_parameters(self._models.exported_parameters())
            self.untrained = False
        if base != "checkpoint" and (found := self._models.to_follow(self._followed)):
            self._followed = found[0]  # the next run starts from this base, not from those weights

    @property
    def generation(self) -> int | None:
        """Number of the newest checkpoint, which was written or restored; None without one."""
        return self._generation

    def begin(self, *, dry_run: bool) -> None:
        """Get ready for a run: continue from weights that took over from elsewhere, if there are any.

        A dry run writes no checkpoint.
        """
        self._dry_run = dry_run
        found = self._models.to_follow(self._followed)
        if found is None:
            return
        (version, weights), own = found, self.engine.parameters()
        if {name: v.shape for name, v in weights.items()} != {name: v.shape for name, v in own.items()}:
            return
        self._followed, self.untrained, self.state.finished = version, False, None
        self.engine.set_parameters(weights)
        # Neither the old average nor the old input statistics belong to them.
        self.state.average = Average(self._task.training.constants.average)
        self.statistics.begin_with(self.state, weights)
        self.checkpoint()
        self._control.report(LogLine(f"training continues from the weights of version {version}"))

    def checkpoint(self) -> int | None:
        """Publish a checkpoint and return its generation; None in a dry run."""
        if self._dry_run:
            return None
        staging = self._checkpoints.stage()
        with disk_errors_of_others(staging):
            self.engine.save(staging)
        values, arrays = self.state.dump()
        state = {
            "bundle": self._task.bundle.fingerprint,
            "engine": self.engine.name,
            "learner": values,
            "followed": self._followed,
        }
        self._generation = self._checkpoints.publish(staging, state, arrays)
        self._control.report(CheckpointWritten(self._generation, self.state.step))
        return self._generation

    def go_back(self, plan: RunPlan, problem: NonFiniteError) -> None:
        """Restore the last checkpoint after the weights were destroyed; `problem` without one."""
        self._control.report(LogLine(f"{problem.what}; going back to generation {self._generation}"))
        if self._generation is None:
            raise problem
        self._restore(self._checkpoints.get(self._generation))
        self.state.plan = plan  # a resumed run has a new number, which that checkpoint does not know

    def finish(self, plan: RunPlan, learned: Window) -> int | None:
        """End a run that has learned these samples, and publish its checkpoint."""
        state = self.state
        kept = ~np.isin(learned.offsets, state.excluded)
        state.remember(learned.offsets[kept])
        state.step, self.untrained = 0, self.untrained and self._dry_run
        return self._store_plan(plan, finished=plan)

    def skip(self, plan: RunPlan) -> int | None:
        """Pass over the samples of a run, and publish a checkpoint."""
        return self._store_plan(plan, finished=None)

    def _store_plan(self, plan: RunPlan, finished: RunPlan | None) -> int | None:
        state = self.state
        state.consumed, state.arrived, state.plan, state.finished = plan.upto, plan.arrived, None, finished
        state.relabelled = plan.relabelled
        return self.checkpoint()

    def _restore(self, generation: Generation) -> None:
        self.engine.restore(generation.path)
        self._load(generation)

    def _load(self, generation: Generation) -> None:
        values = generation.state["learner"]
        self.untrained = self.untrained and values["total_steps"] == 0
        self.state = LearnerState.load(values, generation.arrays, self._task.memory)
        self._generation = generation.number
        self._followed = int(generation.state.get("followed", 0))


class InputStatistics:
    """The units of inputs and targets inside the graph: they follow inputs, and are fitted to targets once.

    The engine has the bundle's initial weights. `names` are those of the parameters that hold statistics of
    inputs and targets.
    """

    def __init__(self, task: LearningTask, engine: Engine) -> None:
        self._inputs, self._targets = task.bundle.standardise, task.bundle.target_standardise
        self._change_of = list(task.bundle.change_of)
        self._task, self._initial = task, engine.parameters()
        parts = [part for part in (self._inputs, self._targets) if part is not None]
        self.names = {str(name) for part in parts for name in part.values()}

    def follow(self, engine: Engine, state: LearnerState, new: Window) -> None:
        """Move the standardisation inside the graph after the inputs; fit it when it never was."""
        overwrite: dict[str, NDArray[np.float32]] = {}
        names, half_life = self._inputs, self._task.training.constants.half_life
        if names is not None:
            moments = state.moments
            mean, scale = self._initial[names["mean"]], self._initial[names["scale"]]
            if moments.mean is None and fitted(mean, scale):
                state.moments = moments = moments.of_scale(half_life, mean, scale)
            moments.update(new.x)
            overwrite[names["mean"]], overwrite[names["scale"]] = moments.scale()
        overwrite |= self._fit_targets(state, new)
        if overwrite:
            engine.set_parameters(overwrite)

    def begin_with(self, state: LearnerState, weights: dict[str, NDArray[np.float32]]) -> None:
        """Continue from the statistics among weights that come from elsewhere."""
        names = self._inputs
        if names is not None and fitted(weights[names["mean"]], weights[names["scale"]]):
            mean, scale = weights[names["mean"]], weights[names["scale"]]
            state.moments = state.moments.of_scale(self._task.training.constants.half_life, mean, scale)

    def _fit_targets(self, state: LearnerState, new: Window) -> dict[str, NDArray[np.float32]]:
        """Fit target units once, at the first run: later the weights depend on them."""
        names = self._targets
        if names is None or state.total_steps > 0 or self._task.schema.labels_itself:
            return {}
        mean, scale = self._initial[names["mean"]], self._initial[names["scale"]]
        if fitted(mean, scale):
            return {}
        centre, unit = scale_of(new.y - new.x[:, self._change_of] if self._change_of else new.y)
        return {names["mean"]: centre.reshape(mean.shape), names["scale"]: unit.reshape(scale.shape)}
