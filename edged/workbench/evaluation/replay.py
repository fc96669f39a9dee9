"""The loop on a recorded stream: the daemon's own parts on a virtual clock, without broker and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edged.clock import VirtualClock
from edged.config import Config
from edged.device.events import Events, Listener
from edged.device.learning.trainer_client import TrainerClient
from edged.device.pipeline import Host, Pipeline, label_requests
from edged.device.startup.bootstrap import open_samples, with_bundle, with_context
from edged.domain.drift.signals import DriftSignal
from edged.domain.events import Event
from edged.domain.judging.expert_mix import StreamModel
from edged.domain.judging.outputs import answers
from edged.domain.judging.predictions import Predictions
from edged.domain.labels.label_requests import LabelRequests
from edged.domain.protocols import ServedModel
from edged.domain.stream.admission import PlausibleRange
from edged.domain.stream.forecast import Forecast
from edged.domain.stream.sample import Batch, LabelUpdate
from edged.domain.training.triggers import FEWEST
from edged.engines.inference import InferenceReader
from edged.errors import TrainingError
from edged.storage.files.atomic import scratch
from edged.storage.models.registry import Registry
from edged.storage.models.signatures import open_bundle
from edged.workbench.evaluation.meters import Detections, PromiseMeter
from edged.workbench.evaluation.stream import (
    LabelOptions,
    Stream,
    in_folder,
    rows_of_pretraining,
    statistics,
    with_columns,
)

BLOCK = 256
DRIFT_BLOCK = 25  # samples in a block where drifts start the runs, which a daemon hears of at once
BEGINNING, FINER = 1600, 5  # samples in smaller blocks: at first it matters most that labels come when due


class RecordedEvent(NamedTuple):
    """An event, and the row of the stream at which it happened."""

    sample: int
    event: Event


class Replay(Listener):
    """The loop on a recorded stream. It waits for no disk: nobody needs its state after a power cut."""

    def __init__(
        self,
        config: Config,
        stream: Stream,
        options: LabelOptions,
        folder: Path,
        on_progress: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        pretrain = rows_of_pretraining(config, stream, options)
        self.options, self.pretrain = options, pretrain
        self._on_progress = on_progress
        config = with_context(in_folder(config, folder, options.seed))
        self.schema = config.stream.to_schema()
        self.stream = stream = with_columns(stream, self.schema)
        found = statistics(config, stream, pretrain) if config.model.bundle is None else None
        self.config = config = with_bundle(config, found)
        self._clock = VirtualClock(float(stream.t[0]))
        self.events: list[RecordedEvent] = []
        self._position = 0
        with scratch(), ExitStack() as stack:
            self._open(stack, config)
            self._close = stack.pop_all()
        self._forecast = (
            Forecast(config.stream.forecast_columns, config.stream.horizon)
            if self.schema.task == "forecast"
            else None
        )
        width = 1 if self.schema.task == "classify" or self.schema.labels_itself else self.schema.targets
        self.answers = np.zeros((len(stream), width), np.float32)
        self.versions = np.zeros(len(stream), np.int64)
        self.expert_answers: NDArray[np.float32] | None = None
        self._plausible = PlausibleRange()
        self.implausible = 0
        self.detections = Detections(self.predictor.anomalies, stream)
        self.promises = PromiseMeter(stream)
        self.labels_used = 0
        self._requests = self._ask_for_labels(config) if options.ask else None
        self._answers_due: deque[tuple[int, int]] = deque()
        self.drifts: list[DriftSignal] = []
        self._started = float(stream.t[pretrain])
        self._next_schedule = self._after(self._started)

    def _open(self, stack: ExitStack, config: Config) -> None:
        folder = config.storage.dir
        bundle = open_bundle(config.model.bundle or folder / "bundle", config.model.keys)
        bundle.check_schema(self.schema)
        self.registry = Registry.open(folder)
        stack.callback(self.registry.close)
        self.log = open_samples(config)
        stack.callback(self.log.close)
        client = TrainerClient(config, durable=False)
        stack.callback(client.close)
        models = InferenceReader(providers=config.serving.provider)
        host = Host(Events(self), self._clock, models, client)
        self.pipeline = pipeline = Pipeline(config, bundle, self.registry, self.log, self.log, host)
        self.models, self.rollout = pipeline.models, pipeline.rollout
        self.predictor, self.scheduler = pipeline.predictor, pipeline.scheduler

    def _ask_for_labels(self, config: Config) -> LabelRequests:
        """From the end of pre-training on only those labels arrive that are asked for."""
        self.stream.labelled[self.pretrain :] = False
        asked = {"request_share": self.options.rate, "requests_per_day": None}
        return label_requests(config.labels.model_copy(update=asked), config.gate.holdout, self.options.seed)

    def event(self, event: Event) -> None:
        """Record what happens, with the row where it did."""
        self.events.append(RecordedEvent(self._position, event))

    def _after(self, moment: float) -> float:
        """When the schedule fires next; runs missed in between are made up for once, as in the daemon."""
        every = self.config.training.every
        if isinstance(every, str):
            from apscheduler.triggers.cron import CronTrigger

            after = datetime.fromtimestamp(moment + 1.0, timezone.utc)
            due = CronTrigger.from_crontab(every, timezone.utc).get_next_fire_time(None, after)
            return float("inf") if due is None else float(due.timestamp())
        if not every:
            return float("inf")
        return self._started + every * (max(0.0, (moment - self._started) // every) + 1.0)

    # ---- running ---------------------------------------------------------------------------

    def run(self) -> None:
        """Pre-train, then the rest prequentially; without pre-training the bundle's model begins.

        Raises TrainingError when pre-training failed: there would be nothing to compare with.
        """
        with scratch(), self._close:
            self.frozen = self._pre_train() if self.pretrain else self._start()
            if self.schema.labels_itself:
                self.answers[: self.pretrain] = self.frozen_answers[: self.pretrain]
            position = self.pretrain
            while position < len(self.stream):
                end = min(position + self._block(position), len(self.stream))
                self._replay(position, end)
                position = self._position = end
                self._heed()
                self._learn()
                self._on_progress(position, len(self.stream), self.predictor.champion.version)
            if self.schema.labels_itself:
                self.detections.finish(self.answers[:, 0])

    def _heed(self) -> None:
        """What the detectors have signalled starts what it starts in the daemon."""
        for signal in self.predictor.drift.pop_signals():
            self.drifts.append(signal)
            self.scheduler.drifted(signal)
        if self.predictor.pop_quality_drop():
            self.scheduler.fallen()

    def _start(self) -> ServedModel:
        """Go on from the bundle's own model, as a device does on its first day."""
        self.first_holdout = self.log.holdout_window(0)
        return self.predictor.champion

    def _pre_train(self) -> ServedModel:
        head = np.arange(self.pretrain)
        for start in range(0, self.pretrain, BLOCK):
            self._append(head[start : start + BLOCK], with_labels=True)
        result = self.scheduler.train("pretraining")
        if result is None:
            raise TrainingError(
                "pre-training failed",
                where="first part of the stream",
                remedy=(self.scheduler.ended and self.scheduler.ended.error) or "see the log",
            )
        champion, evaluator = self.predictor.champion, self.pipeline.evaluator
        verdict, served = self.models.add(evaluator.evaluate(result.to_candidate(), champion, first=True))
        if served is None:
            raise TrainingError("the pre-trained model is unusable", remedy="; ".join(verdict.reasons))
        self.models.set_champion(served.version, "pre-training")
        self.first_holdout = self.log.holdout_window(self.pretrain)
        self.models.promotions = 0
        self.scheduler.trainings = 0
        self.predictor.swap(served, watch=False)
        self.predictor.quality.clear()
        self.pipeline.teacher.refresh()
        own = served.model.with_own_mix() if isinstance(served.model, StreamModel) else served.model
        return replace(served, model=own)

    def _block(self, position: int) -> int:
        """How many samples can pass before a trigger could fire: each brings one label at most."""
        need = DRIFT_BLOCK
        triggers = self.scheduler.triggers
        if triggers.labels_start:
            triggers.arrived, new = self.scheduler.arrived, self.scheduler.new()
            need = max(1, ceil(triggers.needed) - new)
            if triggers.until_scarce > 0:
                need = min(need, max(triggers.until_scarce, ceil(triggers.new_labels / 2) - new))
        if triggers.drifted or triggers.fallen:
            need = FEWEST
        if position < BEGINNING:
            need = min(need, FINER)
        due = int(np.searchsorted(self.stream.t, self._next_schedule, side="left"))
        return max(1, min(BLOCK, need, due - position + 1))

    def _replay(self, start: int, end: int) -> None:
        index = np.arange(start, end)
        self._clock.advance_to(float(self.stream.t[end - 1]))
        made = self._answer(index, end)
        aside = self._append(index, with_labels=False)
        self.predictor.ignore(index[aside] + 1)
        self.predictor.shadow(index[~aside] + 1, self.stream.x[index[~aside]])
        if self.schema.labels_itself:
            self._judge_itself(index, made)
        self._arrive(max(self.pretrain, start - self.options.delay), end - self.options.delay)

    def _answer(self, rows: NDArray[np.int64], end: int) -> Predictions:
        """Predict rows, and keep what was answered; `end` is where the block of rows ends."""
        made = self.predictor.predict(rows + 1, self.stream.x[rows])
        self.answers[rows] = made.output if self.schema.labels_itself else made.answers
        self.versions[rows] = made.version
        self.promises.add(rows, made)
        if made.experts is not None and self.schema.task == "classify":
            if self.expert_answers is None:
                self.expert_answers = np.full((len(self.stream), made.experts.shape[1]), np.nan, np.float32)
            self.expert_answers[rows] = made.experts.argmax(axis=2)
        if self._requests is not None:
            asked = self._requests.choose(made, self.stream.x[rows], self._clock.now())
            self._answers_due.extend((offset - 1, end + self.options.delay) for offset in asked)
        return made

    def _append(self, index: NDArray[np.int64], *, with_labels: bool) -> NDArray[np.bool_]:
        """Store rows; the offset of row i is i + 1. Those of which nothing is learned, `(n,)`."""
        stream = self.stream
        labels: list[Any] = [None] * len(index)
        if with_labels and self._forecast is None and not self.schema.labels_itself:
            labels = [_label(stream.y[i]) if stream.known[i] else None for i in index]
        keys, measured = [stream.keys[i] for i in index], stream.x[index, : self.schema.measured]
        outside = self._plausible.outside(keys, measured.reshape(len(index), -1, self.schema.channels))
        aside = np.asarray(outside.any(axis=1))
        self.implausible += int(aside.sum())
        batch = Batch(
            index + 1,
            keys,
            stream.t[index],
            stream.t[index],
            stream.x[index],
            labels,
            [None] * len(index),
            [None] * len(index),
            aside=frozenset((index[aside] + 1).tolist()),
        )
        updates = self._forecast.update(batch) if self._forecast is not None else []
        self.log.commit(batch, updates)
        if updates:
            rows = np.array([u.offset - 1 for u in updates])
            self._evaluate(rows, stream.y[rows], scored=not with_labels)
        return aside

    def _arrive(self, start: int, end: int) -> None:
        """Labels of rows `start` to `end` become known."""
        if end <= start or self._forecast is not None or self.schema.labels_itself:
            return
        rows = np.arange(start, end)[self.stream.labelled[start:end]]
        if self._requests is not None:
            rows = self._answered(end + self.options.delay)
        now = self._clock.now()
        y, sources = self.stream.y, self.stream.sources or ["labels"] * len(self.stream)
        self.log.commit(None, [LabelUpdate(int(i) + 1, _label(y[i]), now, sources[i]) for i in rows])
        self._evaluate(rows, self.stream.y[rows], scored=True)

    def _judge_itself(self, index: NDArray[np.int64], made: Predictions) -> None:
        """Each sample is its own label, but what is unusual is not learned from."""
        keys = [self.stream.keys[i] for i in index]
        judged = self.predictor.detect_anomalies(made, keys, self.stream.t[index])
        self.detections.add(index, judged)
        self._evaluate(index, self.stream.x[index], scored=True)
        self.labels_used -= int(judged.flagged.sum())
        self.pipeline.exclusion.apply()

    def _answered(self, position: int) -> NDArray[np.int64]:
        """Rows that were asked for, as far as the answer has come and the recording knows it."""
        rows = []
        while self._answers_due and self._answers_due[0][1] <= position:
            row = self._answers_due.popleft()[0]
            if self.stream.known[row]:
                self.stream.labelled[row] = True
                rows.append(row)
        return np.array(rows, np.int64)

    def _evaluate(self, rows: NDArray[np.int64], y: NDArray[np.float32], *, scored: bool) -> None:
        if not scored or len(rows) == 0:
            return
        self.labels_used += len(rows)
        outcome = self.predictor.label(rows + 1, y, self.stream.x[rows])
        if outcome is not None:
            self.rollout.probation_ended(self.predictor.champion.version, outcome)

    def _learn(self) -> None:
        if self._clock.now() >= self._next_schedule:
            self.scheduler.triggers.scheduled = True
            self._next_schedule = self._after(self._clock.now())
        result = self.scheduler.step()
        if result is not None:
            self.rollout.consider(result.to_candidate())

    @cached_property
    def frozen_answers(self) -> NDArray[np.float32]:
        """What the first champion answers to the whole stream, `(n, w)`."""
        return self.answers_of(self.frozen)

    def answers_of_experts(self) -> list[NDArray[np.float32]]:
        """What each expert of the stream's models has answered, `(n, 1)` each."""
        found = self.expert_answers
        return [] if found is None else [found[:, i : i + 1] for i in range(found.shape[1])]

    def answers_of(self, served: ServedModel) -> NDArray[np.float32]:
        """What a model answers to the whole stream, `(n, w)`."""
        out = np.zeros_like(self.answers)
        for start in range(0, len(self.stream), 4096):
            x = self.stream.x[start : start + 4096]
            raw = served.model.predict(x)
            if self.schema.labels_itself:
                weight = served.scale if served.scale is not None else np.float32(1)
                out[start : start + 4096] = (np.abs(raw - x) * weight).mean(axis=1, keepdims=True)
            else:
                out[start : start + 4096] = answers(self.schema, raw)
        return out


def _label(row: NDArray[np.float32]) -> Any:
    return float(row[0]) if len(row) == 1 else tuple(row.tolist())
