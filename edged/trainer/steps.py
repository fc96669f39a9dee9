"""The steps of one run: batches drawn and learned, and samples that make a loss infinite left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.training.replay import BatchMix
from edged.domain.training.trainer_messages import BadSamples, RunProgress
from edged.errors import TrainingError
from edged.trainer import averaging

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edged.config import TrainingConfig
    from edged.domain.protocols import Engine, StepResult
    from edged.domain.training.batch_pool import BatchPool
    from edged.domain.training.learner_state import LearnerState, RunPlan
    from edged.domain.training.message import Message
    from edged.trainer.guidance import ChampionGuide

CHECK_EVERY = 32


class TrainingLoop:
    """Makes the steps of the run that `state.plan` describes, and counts them in `state`.

    Parameters
    ----------
    engine, state
        Whose weights learn, and what goes with them; both change.
    config
        The section `training`.
    pool
        What batches come from.
    guide
        What pulls the steps towards the champion, where there is one.
    apart
        Parameters that are not averaged: statistics of inputs and targets.
    report
        Takes what the daemon is told.
    careful
        Look at each step by itself, so that the batch that does harm is known.
    """

    def __init__(
        self,
        engine: Engine,
        state: LearnerState,
        config: TrainingConfig,
        pool: BatchPool,
        *,
        guide: ChampionGuide | None,
        apart: list[str],
        report: Callable[[Message], None],
        careful: bool,
    ) -> None:
        if state.plan is None:
            raise TrainingError("no run is planned")
        self._engine, self._state, self._config = engine, state, config
        self._pool = pool
        self._guide, self._apart, self._report, self._careful = guide, apart, report, careful
        self.losses: list[float] = []
        self.skipped = 0

    @property
    def plan(self) -> RunPlan:
        """The run."""
        if self._state.plan is None:
            raise TrainingError("no run is planned")
        return self._state.plan

    @property
    def done(self) -> bool:
        """Whether all steps are made."""
        return self._state.step >= self.plan.steps

    def advance(self) -> None:
        """The next step, or several where the engine makes them faster together."""
        state = self._state
        before = state.step
        made, bad = self._advance(self._pool)
        self.losses += made
        self.skipped += bad
        state.step += len(made)
        state.total_steps += len(made)
        averaging.follow(
            state.average,
            self._engine,
            before=before,
            step=state.step,
            last=self.plan.steps,
            apart=self._apart,
        )
        if state.step // CHECK_EVERY > before // CHECK_EVERY:
            self._engine.check()

    def report(self) -> None:
        """Tell how far the run has come."""
        loss = self.losses[-1] if self.losses else float("nan")
        finite = loss if np.isfinite(loss) else None
        self._report(RunProgress(self.plan.run, self._state.step, self.plan.steps, finite))

    def _advance(self, pool: BatchPool) -> tuple[list[float], int]:
        """Losses of what was made, and how many of them were bad."""
        if self._config.accumulate > 1 or (self._guide is not None and self._guide.teaching):
            return self._accumulate(pool)
        count = self._next_steps()
        start = self._state.rng.bit_generator.state
        indices = [self._draw() for _ in range(count)]
        done = self._engine.steps([(pool.x[i], pool.y[i]) for i in indices], careful=self._careful)
        if len(done) < count:
            # What comes next depends on this: the batches that were not used are not drawn yet.
            self._state.rng.bit_generator.state = start
            indices = [self._draw() for _ in done]
        bad = not np.isfinite(done[-1].loss) or (self._careful and not done[-1].applied)
        if bad:
            self._exclude(indices[-1])
        return [step.loss for step in done], int(bad)

    def _next_steps(self) -> int:
        """Steps up to the next point at which something else is due."""
        state, config = self._state, self._config
        dues = (CHECK_EVERY, config.checkpoint_every, averaging.EVERY if config.average else CHECK_EVERY)
        left = self.plan.steps - state.step
        return min(left, self._engine.together, *(due - state.step % due for due in dues))

    def _draw(self) -> NDArray[np.int64]:
        chosen = self.plan.new_share
        share = self._config.new_share if chosen is None else chosen
        return self._pool.draw(
            self._config.batch, BatchMix(share, self._config.recent_share), self._state.rng
        )

    def _accumulate(self, pool: BatchPool) -> tuple[list[float], int]:
        """One step whose batch comes in parts."""
        loss, parts = 0.0, self._config.accumulate
        for part in range(parts):
            index, last = self._draw(), part == parts - 1
            step = self._step(pool, index, apply=last)
            loss += step.loss / parts
            if not np.isfinite(step.loss) or (self._careful and not step.applied and last):
                self._exclude(index)
                return [loss], 1
        return [loss], 0

    def _step(self, pool: BatchPool, index: NDArray[np.int64], *, apply: bool) -> StepResult:
        if self._guide is not None:
            return self._guide.step(pool.x, pool.y, index, apply=apply)
        return self._engine.step(pool.x[index], pool.y[index], apply=apply, careful=self._careful)

    def _exclude(self, index: NDArray[np.int64]) -> None:
        """Find the rows of a batch whose own loss is not finite; they are not drawn again."""
        pool, state = self._pool, self._state
        bad = [
            i
            for i in np.unique(index).tolist()
            if not np.isfinite(self._engine.evaluate(pool.x[i : i + 1], pool.y[i : i + 1]))
        ]
        offsets = pool.offsets[bad].tolist() if bad else pool.offsets[np.unique(index)].tolist()
        state.excluded = sorted({*state.excluded, *offsets})
        pool.exclude(set(state.excluded))
        self._report(BadSamples(tuple(offsets)))
