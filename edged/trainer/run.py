"""One training run, from the order to the candidate.

It continues from the newest checkpoint, learns what is new mixed with what is remembered, writes checkpoints
on the way, and exports a candidate. It may be killed at any instant: the next run continues from the last
published checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.protocols import RunControl
from edged.domain.stream.sample import Window
from edged.domain.training.batch_pool import BatchPool
from edged.domain.training.learner_state import (
    FROM_RANDOM_TIMES,
    SHORT_AFTER_DRIFT,
    RunPlan,
    planned_steps,
    scarcity,
    steps_of_epochs,
)
from edged.domain.training.trainer_messages import RunRequest
from edged.domain.training.training_run import RunOptions, RunResult
from edged.errors import NoDataError, NonFiniteError
from edged.storage.samples.log import SampleLog
from edged.trainer.learner import Learner
from edged.trainer.local_models import PROBE_ROWS, CandidateExporter
from edged.trainer.steps import BatchSampler, TrainingLoop
from edged.trainer.task import LearningTask, in_place

PART = 500  # samples that are learned together where there are many


class TrainingRun:
    """Carries out training runs on one learner, one after the other."""

    def __init__(
        self,
        task: LearningTask,
        learner: Learner,
        samples: SampleLog,
        sampler: BatchSampler,
        exporter: CandidateExporter,
        control: RunControl,
    ) -> None:
        self._task, self._learner, self._samples, self._sampler = task, learner, samples, sampler
        self._exporter, self._control = exporter, control

    def run(self, request: RunRequest) -> RunResult:
        """Carry out one run, on the learner that was restored from the newest checkpoint.

        Raises NoDataError when no labelled sample is new; a command is content with remembered ones if it
        says how much to train, or their labels have changed. Raises InterruptedRunError when asked to stop; a
        checkpoint has been published. Raises TrainingError when the weights cannot be kept finite.
        """
        started, learner = time.monotonic(), self._learner
        learner.begin(dry_run=request.options.dry_run)
        if request.unjudged and learner.state.finished is not None:
            plan = replace(learner.state.finished, run=request.run, trigger=request.trigger)
            new = self._sampler.new_rows(plan)
            pool = self._sampler.pool(new, learner.state)
            return self._result(plan, new.offsets, pool, learner.generation, started)
        plan, resumed = self._plan(request)
        offsets: list[NDArray[np.int64]] = []
        losses: list[float] = []
        skipped = 0
        for part in [plan] if resumed else self._parts(plan, request.options):
            learner.state.plan, learner.state.finished = part, None
            new = self._sampler.new_rows(part)
            if not resumed:
                self._prepare(request, new)
            request = replace(request, trigger="part")  # a drift shortens the memory once
            steps = self._train(part, new)
            generation, pool = learner.finish(part, new), steps.pool
            offsets.append(new.offsets)
            losses += steps.losses
            skipped += steps.skipped
        return self._result(plan, np.concatenate(offsets), pool, generation, started, losses, skipped)

    def _result(
        self,
        plan: RunPlan,
        new: NDArray[np.int64],
        pool: BatchPool,
        generation: int | None,
        started: float,
        losses: Sequence[float] = (),
        skipped: int = 0,
    ) -> RunResult:
        """Export the candidate of a run on the samples `new`; an earlier process may have made its steps."""
        learner, probe = self._learner, pool.x[-PROBE_ROWS:]
        candidate = self._export(plan.run, probe)
        state = learner.state
        kept, tenth = state.remembered(), max(1, len(losses) // 10)
        return RunResult(
            run=plan.run,
            trigger=plan.trigger,
            generation=generation,
            candidate=candidate,
            samples=len(new),
            first_offset=int(new[0]) if len(new) else None,
            last_offset=int(new[-1]) if len(new) else None,
            consumed=state.consumed,
            remembered=len(kept),
            memory=tuple(kept.tolist()),
            bundle=self._task.bundle.fingerprint,
            steps=plan.steps,
            skipped=skipped,
            loss_first=float(np.mean(losses[:tenth])) if losses else None,
            loss_last=float(np.mean(losses[-tenth:])) if losses else None,
            engine=learner.engine.name,
            seconds=time.monotonic() - started,
        )

    # ---- plan ------------------------------------------------------------------------------

    def _plan(self, request: RunRequest) -> tuple[RunPlan, bool]:
        """Decide what the run learns; the plan, and whether it is that of a run that was cut off."""
        state, options = self._learner.state, request.options
        if state.plan is not None and request.resumes and not options.dry_run:
            # Perhaps all its steps are done, and only the end of the run is missing.
            return replace(state.plan, run=request.run, trigger=request.trigger), True
        upto, after, training = self._samples.last_seq(), state.consumed, self._task.training
        count = len(self._samples.training_window(after, training.window, upto_seq=upto))
        asked = request.trigger == "command" or not request.resumes
        relabelled = self._samples.relabelled()
        # Without other labels it would be the present model once more.
        again = asked and (options.of_memory or state.relabelled != relabelled)
        if count == 0 and not (again and len(state.remembered())):
            raise NoDataError(
                "nothing new to learn: no labelled sample is new since the last run",
                where="sample log",
                remedy="steps or epochs train on what is remembered" if asked else "",
            )
        arrived = self._samples.next_offset()
        steps = options.steps or self._steps(options, count, arrived)
        rate = options.learning_rate or training.learning_rate
        share = training.new_share if options.new_share is None else options.new_share
        return RunPlan(
            request.run, request.trigger, after, upto, steps, rate, share, arrived, relabelled, whole=steps
        ), False

    def _parts(self, plan: RunPlan, options: RunOptions) -> list[RunPlan]:
        """The plan in parts, where it has many new samples: they are learned in the order of their labels.

        Thousands at once, as after an import, teach what holds in the mean of all of them; one part after the
        other teaches what holds now, as if each had been learned when it came.
        """
        if options.steps or options.epochs:
            return [plan]
        edges = self._samples.training_parts(plan.after, self._task.training.window, PART, upto_seq=plan.upto)
        count = len(edges) - 1
        if not 1 < count <= plan.steps:
            return [plan]
        made = [plan.steps * part // count for part in range(count + 1)]
        return [
            replace(plan, after=after, upto=upto, steps=to - before, before=before)
            for (after, upto), (before, to) in zip(pairwise(edges), pairwise(made), strict=True)
        ]

    def _steps(self, options: RunOptions, new: int, arrived: int) -> int:
        training, state = self._task.training, self._learner.state
        remembered = len(state.remembered())
        if options.epochs:
            share = (options.new_share or training.new_share) if new and remembered else 1.0
            return steps_of_epochs(
                options.epochs, new or remembered,
                batch=training.batch, share=share or 1.0, accumulate=training.accumulate,
            )  # fmt: skip
        times = scarcity(new, arrived - state.arrived)
        if self._learner.untrained:
            times = max(times, FROM_RANDOM_TIMES)
        fixed = training.constants
        return planned_steps(
            new, steps=training.steps, steps_per=fixed.steps_per, max_steps=fixed.max_steps, times=times
        )

    def _prepare(self, request: RunRequest, new: Window) -> None:
        """Do what comes before the first step of a new run, and publish the checkpoint it starts from."""
        learner = self._learner
        if request.trigger == "drift":
            learner.state.recent.shorten(SHORT_AFTER_DRIFT)
        if len(new):
            learner.statistics.follow(learner.engine, learner.state, new)
        learner.state.step, learner.state.excluded = 0, []
        learner.checkpoint()

    # ---- steps -----------------------------------------------------------------------------

    def _train(self, plan: RunPlan, new: Window) -> TrainingLoop:
        """Make the run's steps; once more from the last checkpoint, where the weights were destroyed."""
        try:
            return self._make_steps(plan, new, careful=False)
        except NoDataError:
            # Not one of these samples can be learned from; they must not be tried again for ever.
            self._learner.skip(plan)
            raise
        except NonFiniteError as problem:
            self._learner.go_back(plan, problem)
            return self._make_steps(plan, new, careful=True)

    def _make_steps(self, plan: RunPlan, new: Window, *, careful: bool) -> TrainingLoop:
        pool = self._sampler.pool(new, self._learner.state)
        loop = TrainingLoop(self._learner, plan, self._task.training, pool, self._control, careful=careful)
        loop.run()
        return loop

    # ---- export ----------------------------------------------------------------------------

    def _export(self, run: int, probe: NDArray[np.float32]) -> Path:
        """Publish the averaged weights, or the weights themselves where there is no average."""
        engine = self._learner.engine
        with in_place(self._learner.state.average.values, engine):
            return self._exporter.export(run, engine, probe)
