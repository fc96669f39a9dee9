"""A fresh start beside the learner, for a world that has changed so much that what is known is in the way.

After a severe drift weights that were trained on the old world, and a memory full of it, hold a learner back
for thousands of labels. A challenger begins with the bundle's first weights and learns from nothing but what
came since; it is tested on new labels beside the champion before it learns from them, and goes to the gate
once it is better beyond chance. Only when it serves, the learner goes on from it. The old world stays in the
bank of earlier regimes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.judging.challenger_test import ChallengerTest
from edged.domain.judging.outputs import answers, errors, unit_scale
from edged.domain.judging.overlap import apart
from edged.domain.model_files import model_in
from edged.domain.protocols import LearningRate
from edged.domain.training.batch_pool import BatchPool, Remembered
from edged.domain.training.caches import codes_of
from edged.domain.training.learner_state import LearnerState
from edged.domain.training.replay import BatchMix
from edged.engines.inference import InferenceModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.config import TrainingConfig
    from edged.domain.json_fields import JsonObject
    from edged.domain.protocols import Engine, Samples, Throttle
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema
    from edged.domain.training.learner_state import RunPlan
    from edged.trainer.task import EngineFactory, LearningTask

FIRST_ROWS = 60  # newest rows that a challenger begins with: those by which a fall of quality is seen
FIRST_STEPS = 300
MARK_FILE = "challenger"
FOLDER = "challenger"


class Challenger:
    """An engine with a state of its own, and its comparison with the champion.

    `born` is the position in label order at which it began, and its name; `contest` has its errors beside the
    champion's.
    """

    def __init__(self, engine: Engine, state: LearnerState, born: int, contest: ChallengerTest) -> None:
        self.engine, self.state, self.born, self.contest = engine, state, born, contest
        self.won = False

    def mark(self) -> bytes:
        """Return what its candidate carries, so that it is known again when it serves."""
        return str(self.born).encode()

    def serves(self, champion: Path | None) -> bool:
        """Whether the champion's folder is that of a candidate of this challenger."""
        file = champion / MARK_FILE if champion is not None else None
        return file is not None and file.exists() and file.read_bytes() == self.mark()

    def test(self, champion: Path | None, new: Window, schema: Schema) -> str:
        """Compare it with the champion on new labels; how the contest stands."""
        if champion is None or len(new) == 0:
            return "open"
        scale = None if schema.task == "classify" or len(new) < 2 else unit_scale(new.y)
        with tempfile.TemporaryDirectory(prefix="edged-challenger-") as folder:
            own = Path(folder) / "model.onnx"
            self.engine.export(own)
            made = [
                errors(schema, answers(schema, InferenceModel(path).predict(new.x)), new.y, scale)
                for path in (own, model_in(champion))
            ]
        self.contest.add(*made)
        outcome = self.contest.outcome(schema.task)
        self.won = outcome == "won"
        return outcome

    def learn(self, pool: BatchPool, plan: RunPlan, training: TrainingConfig, throttle: Throttle) -> bool:
        """Make the steps of a run, more of them the first time; False where they cannot be made."""
        steps = plan.steps if self.state.total_steps else max(plan.steps, FIRST_STEPS)
        mix = BatchMix(training.new_share, training.recent_share)
        self.engine.begin(LearningRate(plan.learning_rate))
        done = 0
        while done < steps and not throttle.stopping:
            rows = pool.draw(training.batch, mix, self.state.rng)
            if not self.engine.step(pool.x[rows], pool.y[rows], careful=True).applied:
                return False
            done += 1
        self.state.total_steps += done
        return True

    def save(self, staging: Path, arrays: dict[str, NDArray[Any]]) -> JsonObject:
        """Write the engine's files below `staging` and add arrays to `arrays`; return the JSON values."""
        folder = staging / FOLDER
        folder.mkdir()
        self.engine.save(folder)
        values, own = self.state.dump()
        own |= {"contest": np.stack([self.contest.challenger, self.contest.champion])}
        arrays |= {f"{FOLDER}/{name}": array for name, array in own.items()}
        return {"learner": values, "born": self.born, "won": self.won}

    @classmethod
    def load(
        cls,
        engine: Engine,
        path: Path,
        values: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        task: LearningTask,
    ) -> Challenger:
        """Restore a challenger from a checkpoint that `save` has written."""
        engine.restore(path / FOLDER)
        own = {
            name.removeprefix(f"{FOLDER}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{FOLDER}/")
        }
        state = LearnerState.load(values["learner"], own, task.memory)
        one = cls(engine, state, values["born"], ChallengerTest(*own["contest"]))
        one.won = values["won"]
        return one


class Challenges:
    """Starts, tests and trains at most one challenger at a time.

    `throttle` ends the steps early. `current` is the challenger; None without one. `allowed` says whether
    there may be one: not for streams that label themselves, and not beside a guide, which holds to the
    champion.
    """

    def __init__(
        self, task: LearningTask, engines: EngineFactory, samples: Samples, throttle: Throttle
    ) -> None:
        self._task, self._engines, self._samples, self._throttle = task, engines, samples, throttle
        training = task.training
        self.allowed = (
            not task.schema.labels_itself and training.challenger != "off" and training.guide == "none"
        )
        self.current: Challenger | None = None

    def restore(self, path: Path, values: Mapping[str, Any] | None, arrays: Mapping[str, Any]) -> None:
        """Restore the challenger that a checkpoint holds, if any."""
        self.current = None
        if self.allowed and values is not None:
            self.current = Challenger.load(self._engines.open(), path, values, arrays, self._task)

    def promoted(self, champion: Path | None, main: LearnerState) -> tuple[Engine, LearnerState] | None:
        """Return engine and state to continue with, if the challenger has become champion."""
        one = self.current
        if one is None or not one.serves(champion):
            return None
        self.current = None
        # Its memory, as that is what it has won by; everything else goes on.
        state = replace(
            one.state, moments=main.moments, consumed=main.consumed, arrived=main.arrived, plan=main.plan
        )
        return one.engine, state

    def step(
        self,
        new: Window,
        plan: RunPlan,
        champion: Path | None,
        *,
        wanted: bool,
        recent: NDArray[np.int64],
        shared: Mapping[str, NDArray[np.float32]],
    ) -> str | None:
        """Test the challenger on new labels and train it on them, before the learner itself learns.

        `new` are labelled rows that nobody has learned from, for the run of `plan`; `recent` are offsets of
        what the learner has learned last, oldest first. With `wanted` a new challenger begins, since the
        world has changed severely just now. It takes `shared`, statistics of inputs and targets, from the
        learner.

        Returns one word for what has happened: `begun`, `won`, `lost`, `open`; None without a challenger.
        """
        one, word = self.current, None
        if wanted:
            one = self.current = self._begin(plan)
            before = recent[max(0, len(recent) - max(0, FIRST_ROWS - len(new))) :] if len(new) else recent[:0]
            new = new.take(np.arange(max(0, len(new) - FIRST_ROWS), len(new)))
            known = self._samples.rows(np.sort(before))
            one.state.remember(known.offsets, known.y)
            word = "begun"
        elif one is not None:
            word = one.test(champion, self._evidence(new), self._task.schema)
        if one is None or word == "lost":
            self.current = None
            return word
        one.engine.set_parameters(shared)
        if not self._learn(one, new, plan):
            self.current, word = None, "lost"
        return word

    def _evidence(self, new: Window) -> Window:
        """Leave out windows that overlap others: they do not count twice."""
        if self._task.block == 1:
            return new
        return new.take(apart(*self._samples.places(new.offsets), self._task.block))

    def _begin(self, plan: RunPlan) -> Challenger:
        state = LearnerState.fresh(self._task.memory, self._task.training.seed + plan.upto)
        return Challenger(self._engines.open(), state, plan.upto, ChallengerTest())

    def _learn(self, one: Challenger, new: Window, plan: RunPlan) -> bool:
        state, training = one.state, self._task.training
        remembered = Remembered(self._samples.rows(state.remembered()), state.recent.ids, state.memory.ids)
        pool = BatchPool(new, remembered, self._task.labels, set())
        if training.key_share < 1.0:
            pool.cap(codes_of(self._samples.keys(pool.offsets)), training.key_share)
        if not one.learn(pool, plan, training, self._throttle):
            return False
        state.remember(new.offsets, new.y)
        return True
