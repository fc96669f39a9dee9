"""One training run, as it happens in the trainer process.

Restores the newest valid checkpoint, learns from what is new mixed with what is remembered,
checkpoints as it goes, and leaves a candidate. May be killed at any instant: the next run
continues from the last published checkpoint.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.model_files import model_in
from edged.domain.protocols import LearningRate
from edged.domain.training.batch_pool import BatchPool, labels_for
from edged.domain.training.learner_state import (
    FROM_RANDOM_TIMES,
    SHORT_AFTER_DRIFT,
    LearnerState,
    RunPlan,
    planned_steps,
    scarcity,
    steps_of_epochs,
)
from edged.domain.training.trainer_messages import (
    BadSamples,
    ChallengerState,
    CheckpointWritten,
    DamagedCheckpoint,
    Note,
)
from edged.domain.training.training_run import RunResult
from edged.domain.training.weight_averaging import Average
from edged.errors import NoDataError, NonFiniteError, TrainingError
from edged.storage.files.atomic import disk_errors_of_others
from edged.storage.models.checkpoints import unpack_arrays
from edged.trainer import averaging
from edged.trainer.batches import BatchSampler
from edged.trainer.candidate import ANCHOR_FILE, CandidateExporter
from edged.trainer.challenger import Challenges
from edged.trainer.guidance import guide_for
from edged.trainer.standardisation import InputStatistics
from edged.trainer.steps import TrainingLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.config import TrainingConfig
    from edged.domain.protocols import Engine, Model, Samples
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema
    from edged.domain.training.message import Message
    from edged.domain.training.trainer_messages import RunRequest
    from edged.domain.training.training_run import Base, RunOptions
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.checkpoints import Checkpoints, Generation
    from edged.trainer.challenger import Challenger

PROGRESS_SECONDS = 0.5
PROBE_ROWS = 16
JUDGED_ROWS = 1024


class InterruptedRunError(TrainingError):
    """The run was asked to stop; its state is in the last checkpoint."""

    exit_code = 130


class TrainingRun:
    """A learner on one bundle: an engine with its state, able to do run after run."""

    def __init__(
        self,
        *,
        config: TrainingConfig,
        schema: Schema,
        bundle: Bundle,
        engine: Engine,
        samples: Samples,
        checkpoints: Checkpoints,
        candidates: Path,
        load_model: Callable[[Path], Model],
        pack_weights: Callable[[Mapping[str, NDArray[np.float32]]], bytes] | None,
        report: Callable[[Message], None],
        stopping: Callable[[], bool],
        rest: Callable[[float], None] = lambda _: None,
        champion: Callable[[], Path | None] = lambda: None,
        elsewhere: Callable[[int], tuple[int, dict[str, NDArray[np.float32]]] | None] = lambda _: None,
        wanted: Callable[[], bool] = lambda: False,
        base: Base = "checkpoint",
        fresh: Callable[[], Engine] | None = None,
        block: int = 1,
        quantised: Callable[[Mapping[str, NDArray[np.float32]]], dict[str, bytes]] = lambda _: {},
    ) -> None:
        self._config = config
        self._elsewhere = elsewhere
        self._followed = 0
        self._wanted = wanted
        self._dry_run = False
        self._champion = champion
        self._guide = guide_for(config.guide, config.guide_weight, engine, bundle.trainable)
        self._schema = schema
        self._bundle = bundle
        self._engine = engine
        self._samples = samples
        self._checkpoints = checkpoints
        self._load_model = load_model
        self._handing_over = CandidateExporter(candidates, load_model, pack_weights, quantised, bundle)
        self._drawing = BatchSampler(config=config, samples=samples, labels_for=self._labels_for)
        self._report = report
        self._stopping = stopping
        self._rest = rest
        self._challenges = self._second_learner(fresh, block)
        self._generation: int | None = None
        self._state = self._fresh_state()
        # Whether the engine's weights are those of a bundle that nobody has trained.
        self._random = bundle.seed is not None
        self._units = InputStatistics(bundle, config, schema, engine)
        self._probe = np.zeros((1, schema.width), np.float32)
        self._restore_newest(base)
        if base != "checkpoint":
            self._stay()

    # ---- state -----------------------------------------------------------------------------

    def _fresh_state(self) -> LearnerState:
        return LearnerState.fresh(seed=self._config.seed, **self._memories())

    def _memories(self) -> dict[str, Any]:
        config = self._config
        return {
            "replay": config.replay,
            "recent": min(config.recent, config.replay),
            "half_life": config.half_life,
            "average": config.average,
            "balance": config.balance,
        }

    def _second_learner(self, fresh: Callable[[], Engine] | None, block: int) -> Challenges | None:
        """Challengers where they are wanted; beside a guide, which holds to the champion, they are not."""
        config = self._config
        if fresh is None or config.challenger == "off" or self._guide is not None:
            return None
        return Challenges(
            fresh, config, self._schema, self._samples, self._labels_for, self._memories(),
            self._load_model, self._stopping, block,
        )  # fmt: skip

    def _restore_newest(self, base: Base) -> None:
        generation = self._checkpoints.latest()
        for damaged in self._checkpoints.damaged:
            self._report(DamagedCheckpoint(damaged))
        if generation is None:
            return
        if generation.state.get("bundle") != self._bundle.fingerprint:
            self._report(Note("checkpoints belong to another bundle; starting from this one"))
            self._followed = -1
            return
        if base == "checkpoint":
            self._restore(generation)
        else:
            self._take_state(generation)
            self._state.with_new_weights(self._config.half_life, self._config.average)

    def start_with(self, parameters: Mapping[str, NDArray[np.float32]]) -> None:
        """Begin the next run with these weights; for a trainee whose `base` is no checkpoint."""
        self._random = False
        self._engine.set_parameters(parameters)

    def _stay(self) -> None:
        """What came from elsewhere before now is not gone on from: this run's base was chosen."""
        found = self._elsewhere(self._followed)
        if found is not None:
            self._followed = found[0]

    def _restore(self, generation: Generation) -> None:
        self._engine.restore(generation.path)
        self._take_state(generation)

    def _take_state(self, generation: Generation) -> None:
        self._random = self._random and generation.state["learner"]["total_steps"] == 0
        self._state = LearnerState.load(generation.state["learner"], generation.arrays, **self._memories())
        if self._challenges is not None:
            self._challenges.restore(generation.path, generation.state.get("challenger"), generation.arrays)
        self._generation = generation.number
        self._followed = int(generation.state.get("followed", 0))

    def _checkpoint(self) -> int | None:
        if self._dry_run:
            return None
        staging = self._checkpoints.stage()
        with disk_errors_of_others(staging):
            self._engine.save(staging)
        values, arrays = self._state.dump()
        state = {
            "bundle": self._bundle.fingerprint,
            "engine": self._engine.name,
            "learner": values,
            "followed": self._followed,
        }
        if self._challenges is not None and self._challenges.current is not None:
            with disk_errors_of_others(staging):
                state["challenger"] = self._challenges.current.save(staging, arrays)
        self._generation = self._checkpoints.publish(staging, state, arrays)
        self._report(CheckpointWritten(self._generation, self._state.step))
        return self._generation

    @property
    def consumed(self) -> int:
        """Position in label order up to which everything has been learned."""
        return self._state.consumed

    def own_rows(self) -> Window:
        """What this device has to learn from: its newest samples and those that it remembers, each once."""
        newest = self._samples.training_window(0, self._config.window)
        ids = self._state.remembered()
        more = self._samples.rows(ids[~np.isin(ids, newest.offsets)])
        parts = ("offsets", "seq", "x", "y")
        joined = type(newest)(
            *(np.concatenate([getattr(part, name) for part in (more, newest)]) for name in parts)
        )
        return self._trainable(joined)

    # ---- a run -----------------------------------------------------------------------------

    def run(self, request: RunRequest) -> RunResult:
        """Do one run and return its result.

        Raises
        ------
        NoDataError
            When no labelled sample is new; a command is content with remembered ones.
        InterruptedRunError
            When asked to stop; a checkpoint has been published.
        TrainingError
            When the weights cannot be kept finite.
        """
        started, self._dry_run = time.monotonic(), request.options.dry_run
        self._follow_elsewhere()
        self._state.plan, resumed = self._plan(request)
        new = self._window(self._state.plan)
        if not resumed:
            self._go_on_from_challenger()
            if request.trigger == "drift":
                self._state.recent.shorten(SHORT_AFTER_DRIFT)
            if len(new):
                self._units.follow(self._engine, self._state, new)
                self._judge_averages(new)
                self._challenge(new, wanted=request.options.challenge)
            self._state.step, self._state.excluded = 0, []
            self._checkpoint()
        try:
            losses, skipped = self._learn(new, careful=False)
        except NoDataError:
            # Not one of these samples can be learned from; they must not be tried again for ever.
            plan = self._state.plan
            self._state.consumed, self._state.arrived, self._state.plan = plan.upto, plan.arrived, None
            self._checkpoint()
            raise
        except NonFiniteError as problem:
            self._report(Note(f"{problem.what}; going back to generation {self._generation}"))
            if self._generation is None:
                raise
            plan = self._state.plan
            self._restore(self._checkpoints.get(self._generation))
            self._state.plan = plan  # a resumed run has a new number, which that checkpoint does not know
            losses, skipped = self._learn(new, careful=True)
        return self._finish(new, losses, skipped, started)

    def _follow_elsewhere(self) -> None:
        """Go on from weights that were not learned here, where such a model has taken over since."""
        found = self._elsewhere(self._followed)
        if found is None:
            return
        version, weights = found
        own = self._engine.parameters()
        if {name: v.shape for name, v in weights.items()} != {name: v.shape for name, v in own.items()}:
            return
        self._followed, self._random = version, False
        self._engine.set_parameters(weights)
        # Neither the old averages nor the old input statistics belong to them.
        self._state.average = Average(self._config.average)
        self._units.begin_with(self._state, weights)
        self._checkpoint()
        self._report(Note(f"training goes on from the weights of version {self._followed}"))

    def _go_on_from_challenger(self) -> None:
        """The gate has chosen the challenger: what it has become is what is learned on."""
        found = self._challenges and self._challenges.crowned(self._champion(), self._state)
        if found:
            self._engine, self._state = found
            self._report(Note("going on from the challenger, which serves now"))

    def _challenge(self, new: Window, *, wanted: bool) -> None:
        state, plan = self._state, self._state.plan
        if self._challenges is None or plan is None or self._dry_run:
            return
        apart, values = self._units.names, self._engine.parameters()
        word = self._challenges.step(
            new, plan, self._champion(), wanted=wanted, recent=state.recent.ids,
            shared={name: values[name] for name in apart},
        )  # fmt: skip
        if word is not None and word != "open":
            self._report(ChallengerState(word))
        if word is not None and self._stopping():
            raise InterruptedRunError("the run was asked to stop", where="before its first step")

    def _plan(self, request: RunRequest) -> tuple[RunPlan, bool]:
        kept, options = self._state.plan, request.options
        if kept is not None and not options.dry_run:
            # Perhaps all its steps are done, and only the end of the run is missing.
            return replace(kept, run=request.run, trigger=request.trigger), True
        upto = self._samples.last_seq()
        after = self._state.consumed
        count = len(self._samples.training_window(after, self._config.window, upto_seq=upto))
        if count == 0 and not (request.trigger == "command" and len(self._state.remembered())):
            raise NoDataError("no labelled sample is new since the last run", where="sample log")
        arrived = self._samples.next_offset()
        steps = options.steps or self._steps(options, count, arrived)
        rate = options.learning_rate or self._config.learning_rate
        share = options.new_share
        return RunPlan(request.run, request.trigger, after, upto, steps, rate, share, arrived), False

    def _steps(self, options: RunOptions, new: int, arrived: int) -> int:
        config = self._config
        if options.epochs:
            share = (options.new_share or config.new_share) if new and len(self._state.remembered()) else 1.0
            rows = new or len(self._state.remembered())
            return steps_of_epochs(
                options.epochs, rows, batch=config.batch, share=share or 1.0, accumulate=config.accumulate
            )
        before = self._state.arrived
        times = scarcity(new, arrived - before) if config.scarce_labels and before is not None else 1.0
        if self._random:
            times = max(times, FROM_RANDOM_TIMES)
        return planned_steps(
            new, steps=config.steps, steps_per=config.steps_per, max_steps=config.max_steps, times=times
        )

    def _window(self, plan: RunPlan) -> Window:
        window = self._samples.training_window(plan.after, self._config.window, upto_seq=plan.upto)
        return self._trainable(window)

    def _trainable(self, window: Window) -> Window:
        good = self._schema.check(window.x, window.y)
        if good.all():
            return window
        self._report(BadSamples(tuple(window.offsets[~good].tolist())))
        return window.take(good)

    def _judge_averages(self, new: Window) -> None:
        newest = new.take(np.arange(max(0, len(new) - JUDGED_ROWS), len(new)))
        averaging.judge(self._state.average, self._engine, newest.x, self._labels_for(newest.y))

    def _learn(self, new: Window, *, careful: bool) -> tuple[list[float], int]:
        """Make the run's steps; their losses, and how many were bad."""
        state, config = self._state, self._config
        remembered = self._trainable(self._drawing.remembered(state))
        pool = self._drawing.pool(new, remembered, state)
        self._probe = pool.x[-PROBE_ROWS:]
        self._begin_guide(pool)
        steps = TrainingLoop(
            self._engine, state, config, pool,
            guide=self._guide, apart=self._units.names, report=self._report, careful=careful,
        )  # fmt: skip
        total = steps.plan.steps if config.schedule == "linear" else 0
        self._engine.begin(LearningRate(steps.plan.learning_rate, config.warmup, total), at_step=state.step)
        reported = time.monotonic()
        while not steps.done:
            began = time.monotonic()
            steps.advance()
            self._rest(time.monotonic() - began)
            if self._stopping():
                self._engine.check()
                self._checkpoint()
                raise InterruptedRunError(
                    "the run was asked to stop", where=f"step {state.step} of {steps.plan.steps}"
                )
            due = self._wanted() or state.step % config.checkpoint_every == 0
            if due and not steps.done:
                self._engine.check()
                self._checkpoint()
            if time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                steps.report()
        self._engine.check()
        steps.report()
        return steps.losses, steps.skipped

    def _begin_guide(self, pool: BatchPool) -> None:
        if self._guide is None:
            return
        folder = self._champion()
        if folder is None:
            self._guide.begin(None, {}, pool.x)
            return
        note = folder / ANCHOR_FILE
        known = unpack_arrays(note.read_bytes()) if note.exists() else {}
        self._guide.begin(self._load_model(model_in(folder)), known, pool.x)

    def _labels_for(self, y: NDArray[np.float32]) -> NDArray[Any]:
        return labels_for(self._bundle.label_loss, y, self._bundle.output.width)

    # ---- the end of a run ------------------------------------------------------------------

    def _finish(self, new: Window, losses: list[float], skipped: int, started: float) -> RunResult:
        state = self._state
        plan = state.plan
        if plan is None:
            raise TrainingError("no run is planned")
        kept = ~np.isin(new.offsets, state.excluded)
        state.remember(new.offsets[kept], new.y[kept])
        state.consumed, state.arrived = plan.upto, plan.arrived
        state.plan, state.step, self._random = None, 0, self._random and self._dry_run
        generation = self._checkpoint()
        candidate = self._handing_over.candidate(
            plan.run, self._engine, state.average, self._probe, self._guide
        )
        beside = self._challenges.current if self._challenges is not None else None
        tenth = max(1, len(losses) // 10)
        return RunResult(
            run=plan.run,
            trigger=plan.trigger,
            generation=generation,
            candidate=candidate,
            samples=len(new),
            first_offset=int(new.offsets[0]) if len(new) else None,
            last_offset=int(new.offsets[-1]) if len(new) else None,
            consumed=state.consumed,
            remembered=len(state.remembered()),
            memory=tuple(self._protected(beside).tolist()),
            challenger=self._handing_over.challenger(plan.run, beside, self._probe),
            averaged=state.average.better,
            bundle=self._bundle.fingerprint,
            steps=plan.steps,
            skipped=skipped,
            loss_first=float(np.mean(losses[:tenth])) if losses else None,
            loss_last=float(np.mean(losses[-tenth:])) if losses else None,
            engine=self._engine.name,
            seconds=time.monotonic() - started,
        )

    def _protected(self, beside: Challenger | None) -> NDArray[np.int64]:
        """Samples that must stay in the log."""
        ids = self._state.remembered()
        return np.union1d(ids, beside.state.remembered()) if beside else ids
