"""The steps of one run: batches drawn and learned, and samples that make a loss infinite left out."""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from edged.config import TrainingConfig
from edged.domain.protocols import Engine, LearningRate, RunControl, StepResult
from edged.domain.stream.sample import Window
from edged.domain.training.batch_pool import BatchMix, BatchPool, Remembered, RowCache, codes_of
from edged.domain.training.learner_state import LearnerState, RunPlan
from edged.domain.training.trainer_messages import BadSamples, RunProgress
from edged.errors import TrainingError
from edged.storage.samples.log import SampleLog
from edged.trainer.learner import Learner
from edged.trainer.task import LearningTask

CHECK_EVERY = 32
AVERAGE_EVERY = 8  # steps between two looks at the weights; a run's last ones count, too
PROGRESS_SECONDS = 0.5
# Time between two looks at orders and the pace: each costs a part of a small step.
LOOK_SECONDS = 0.005


class InterruptedRunError(TrainingError):
    """The run was asked to stop; its state is in the last checkpoint."""

    exit_code = 130


class TrainingLoop:
    """Makes the steps of a run, and counts them in the learner's state.

    Engine, state and checkpoints of the learner change with each step. With `careful` each step is looked at
    by itself, so that the batch that does harm is known. `losses` has the loss of each step; `skipped` counts
    those with a loss or a gradient that was not finite.
    """

    def __init__(
        self,
        learner: Learner,
        plan: RunPlan,
        training: TrainingConfig,
        pool: BatchPool,
        control: RunControl,
        *,
        careful: bool,
    ) -> None:
        self._learner, self._state = learner, learner.state
        self._engine: Engine = learner.engine
        self._plan, self._training, self.pool = plan, training, pool
        self._control, self._careful = control, careful
        self.losses: list[float] = []
        self.skipped = 0

    def run(self) -> None:
        """Make all steps, with checkpoints on the way.

        Raises InterruptedRunError when asked to stop, after a checkpoint; NoDataError when no sample is left
        that has a finite loss; NonFiniteError when the weights are destroyed.
        """
        state, plan, training = self._state, self._plan, self._training
        every = training.constants.checkpoint_every
        total = plan.steps if training.schedule == "linear" else 0
        self._engine.begin(LearningRate(plan.learning_rate, training.warmup, total), at_step=state.step)
        reported = time.monotonic()
        while state.step < plan.steps:
            began = time.monotonic()
            self._advance()
            self._control.throttle(time.monotonic() - began)
            if self._control.stopping:
                self._checkpoint()
                raise InterruptedRunError(
                    "the run was asked to stop", where=f"step {state.step} of {plan.steps}"
                )
            due = self._control.checkpoint_requested() or state.step % every == 0
            if due and state.step < plan.steps:
                self._checkpoint()
            if time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                self._report()
        self._engine.check()
        self._report()

    def _checkpoint(self) -> None:
        self._engine.check()
        self._learner.checkpoint()

    def _report(self) -> None:
        loss = self.losses[-1] if self.losses else float("nan")
        finite = loss if np.isfinite(loss) else None
        plan, made = self._plan, self._plan.before + self._state.step
        self._control.report(RunProgress(plan.run, made, plan.whole, finite))

    def _advance(self) -> None:
        """Make steps until something else is due, `LOOK_SECONDS` have passed, or the run is to stop."""
        state, before = self._state, self._state.step
        until = time.monotonic() + LOOK_SECONDS
        for _ in range(self._next_steps()):
            self.losses.append(self._make_step())
            state.step += 1
            state.total_steps += 1
            if self._control.stopping or time.monotonic() > until:
                break
        self._follow_average(before)
        if state.step % CHECK_EVERY == 0:
            self._engine.check()

    def _next_steps(self) -> int:
        """Steps up to the next point at which something else is due."""
        step, training = self._state.step, self._training
        fixed = training.constants
        dues = (CHECK_EVERY, fixed.checkpoint_every, AVERAGE_EVERY if fixed.average else CHECK_EVERY)
        left = self._plan.steps - step
        return min(left, *(due - step % due for due in dues))

    def _draw(self) -> NDArray[np.int64]:
        training = self._training
        mix = BatchMix(self._plan.new_share, training.constants.recent_share)
        return self.pool.draw(training.batch, mix, self._state.rng)

    def _make_step(self) -> float:
        """Learn one batch, which may come in parts, and return its loss."""
        loss, parts = 0.0, self._training.accumulate
        for part in range(parts):
            index, last = self._draw(), part == parts - 1
            step = self._step(index, apply=last)
            loss += step.loss / parts
            if not math.isfinite(step.loss) or (self._careful and not step.applied and last):
                self._exclude(index)
                break
        return loss

    def _step(self, index: NDArray[np.int64], *, apply: bool) -> StepResult:
        x, y = self.pool.x[index], self.pool.y[index]
        return self._engine.step(x, y, apply=apply, careful=self._careful)

    def _exclude(self, index: NDArray[np.int64]) -> None:
        """Exclude the rows of a batch whose own loss is not finite; all of them where there is none."""
        pool, state = self.pool, self._state
        self.skipped += 1
        rows = np.unique(index)
        bad = [
            i for i in rows if not np.isfinite(self._engine.evaluate(pool.x[i : i + 1], pool.y[i : i + 1]))
        ]
        offsets = pool.offsets[bad or rows].tolist()
        state.excluded = sorted({*state.excluded, *offsets})
        pool.exclude(set(state.excluded))
        self._control.report(BadSamples(tuple(offsets)))

    def _follow_average(self, before: int) -> None:
        """Let the average follow the engine's weights, where a look at them is due."""
        average, step = self._state.average, self._state.step
        if average.decay <= 0 or (step % AVERAGE_EVERY and step < self._plan.steps):
            return
        apart = self._learner.statistics.names
        weights = {name: value for name, value in self._engine.parameters().items() if name not in apart}
        if all(np.isfinite(value).all() for value in weights.values()):
            average.follow(weights, step - before // AVERAGE_EVERY * AVERAGE_EVERY)


class BatchSampler:
    """Reads the samples of runs, and reports those that cannot be learned from."""

    def __init__(self, task: LearningTask, samples: SampleLog, control: RunControl) -> None:
        self._task, self._samples, self._control = task, samples, control
        self._rows = RowCache(samples)

    def new_rows(self, plan: RunPlan) -> Window:
        """Read the samples that are new to a run."""
        limit = self._task.training.window
        new = self._samples.training_window(plan.after, limit, upto_seq=plan.upto)
        return self._usable(self._samples.bounded(new))

    def all_rows(self, state: LearnerState) -> Window:
        """Read the newest samples and the remembered ones, each once."""
        newest = self._samples.training_window(0, self._task.training.window)
        ids = state.remembered()
        more = self._samples.rows(ids[~np.isin(ids, newest.offsets)])
        return self._usable(more.followed_by(newest))

    def pool(self, new: Window, state: LearnerState) -> BatchPool:
        """Put new and remembered samples side by side, to draw a run's batches from."""
        rows = self._usable(self._rows.rows(state.remembered(), self._samples.relabelled()))
        remembered = Remembered(rows, state.recent.ids, state.memory.ids)
        pool = BatchPool(new, remembered, self._task.labels, set(state.excluded))
        keys = self._samples.keys(pool.offsets)
        pool.cap(codes_of(keys), self._task.training.constants.key_share)
        return pool

    def _usable(self, window: Window) -> Window:
        good = self._task.schema.check(window.x, window.y)
        if good.all():
            return window
        self._control.report(BadSamples(tuple(window.offsets[~good].tolist())))
        return window.take(good)
