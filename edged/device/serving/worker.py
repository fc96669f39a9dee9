"""Serving: which thread answers, what waits for the serving thread, and who hears of the answers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.device.events import Events
from edged.device.serving.label_requester import LabelRequester
from edged.device.serving.prediction_messages import encode
from edged.device.serving.predictor import Predictor
from edged.domain.events import AnomalyAlarm, DriftDetected
from edged.domain.judging.latencies import Latencies
from edged.domain.judging.predictions import Predictions
from edged.domain.protocols import ModelSupervisor
from edged.domain.stream.sample import Batch, LabelUpdate
from edged.errors import ModelError
from edged.host.systemd import Watchdog
from edged.host.turns import Turns, TurnThreads
from edged.logs import get_logger

log = get_logger("edged.serve")

IDLE_SECONDS = 0.5
MAX_WAITING = 64  # batches; beyond, ingest waits, acknowledges later, and the broker holds the rest
LOOK = "look"  # in the queue: a turn without a sample
FEW = 4  # samples that the caller's thread answers itself while nothing else waits
SHORT_SECONDS = 0.002  # a run that takes longer is not for a thread that has other work


class ServingWorker:
    """Answers batches as they come and publishes the answers, one batch at a time.

    A thread of its own, the serving thread, takes them from a queue. A few samples that come while nothing
    waits are answered on the thread that submits them, as a change of threads costs more than their answers.
    Labels pass through the same queue, so a label never overtakes its sample's prediction.

    `predictor` answers with the champion; its `schema` is that of the stream. `batch`: most samples that are
    predicted at once. `boot`: which start of the daemon this is; part of the id of samples without one of
    their own. `supervisor` acts on drift, failed champions and the outcome of probations. `requester` asks
    for labels of answered samples. `events` hears predictions and alarms. `watchdog` is shown that this
    thread works, as the loop `serve`. `latencies` collects seconds from the arrival of a sample to its
    prediction.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        batch: int,
        boot: int,
        supervisor: ModelSupervisor,
        requester: LabelRequester,
        events: Events,
        watchdog: Watchdog,
        latencies: Latencies,
    ) -> None:
        self._predictor = predictor
        self._schema = predictor.schema
        self._batch = batch
        self._boot = boot
        self._supervisor = supervisor
        self._requester = requester
        self._events = events
        self._watchdog = watchdog
        self.latencies = latencies
        self._queue: queue.Queue[tuple[Batch, NDArray[np.float64]] | list[LabelUpdate] | str | None] = (
            queue.Queue(MAX_WAITING)
        )
        self._turn = threading.Lock()  # held by the one thread that is serving: all else here is for that one
        self._answer_seconds = float("inf")  # seconds that the last answers took
        self._turns = Turns(TurnThreads("serve", 1))
        self._callers: TurnThreads | None = None
        self.errors = 0
        self.idle: float | None = IDLE_SECONDS
        """Seconds between two turns without work; None where `look` is called while there may be some."""

    def start(self, threads: TurnThreads | None = None, callers: TurnThreads | None = None) -> None:
        """Start the prediction loop, on a thread of its own or on `threads` that several streams share.

        Those that submit then take turns on `callers`.
        """
        if threads is not None:
            self._turns, self.idle, self._callers = Turns(threads), None, callers
        self._turns.start(self)

    def stop(self, timeout: float = 5.0) -> None:
        """Answer the queued samples, then stop the thread."""
        self._put(None)
        self._turns.join(timeout)

    @property
    def waiting(self) -> int:
        """Batches and labels that wait for the prediction thread."""
        return self._queue.qsize()

    def submit(self, batch: Batch, received: NDArray[np.float64]) -> None:
        """Hand over a batch; `received` `(n,)` monotonic seconds."""
        if len(batch) > FEW or not self._serve_at_once((batch, received)):
            self._put((batch, received))

    def label(self, updates: list[LabelUpdate]) -> None:
        """Hand over labels that found their samples."""
        self._put(updates)

    def _serve_at_once(self, item: tuple[Batch, NDArray[np.float64]]) -> bool:
        """Answer a batch on this thread; False where something waits or is being served, or answers are slow.

        A head that has to learn everything again is left to the serving thread, too.
        """
        if self._answer_seconds > SHORT_SECONDS or not self._turn.acquire(blocking=False):
            return False
        try:
            teacher = self._predictor.teacher
            if not self._queue.empty() or (teacher is not None and teacher.behind):
                return False
            self._serve(item)
        finally:
            self._turn.release()
        return True

    def _put(self, item: tuple[Batch, NDArray[np.float64]] | list[LabelUpdate] | None) -> None:
        if self._callers is not None and self._queue.full():
            with self._callers.apart():
                self._queue.put(item)
        else:
            self._queue.put(item)
        if not self._turns.is_set():
            self._turns.set()

    def ask(self, x: NDArray[np.float32], version: int | None = None) -> Predictions:
        """Predict rows `x` `(n, d)` that are no samples, on the calling thread; waits for the present batch.

        Raises RefusedError when the model `version` is not loaded; ModelError when no model has an answer.
        """
        asked = time.monotonic()
        with self._turn:
            began = time.monotonic()
            try:
                made = self._rescued(lambda: self._predictor.answer(x, version))
            finally:
                self._report_failed()
            now = time.monotonic()
            self._answer_seconds = now - began
            self.latencies.add(np.full(len(x), now - asked))
        return made

    def is_quick(self, rows: int) -> bool:
        """Whether `ask` is so quick for so many rows that a change of threads would cost more."""
        return rows <= FEW and self._answer_seconds <= SHORT_SECONDS and not self._turn.locked()

    def look(self) -> None:
        """Have a turn taken that needs no sample: labels that were changed, a probation that ends."""
        if self._queue.empty():
            with suppress(queue.Full):
                self._queue.put_nowait(LOOK)
            self._turns.set()

    def patience(self) -> float | None:
        """Seconds until the next turn unless woken; None for no end."""
        return self.idle

    def turn(self, *, woken: bool) -> bool:
        """See `Stage`: answer one batch, or learn what was changed where none waits."""
        self._turns.clear()
        with self._turn:
            self._predictor.expire_probation(time.monotonic())
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                if not woken:
                    self._refresh_head()
                    self._watchdog.beat("serve")
                return True
            if item is None:
                return False
            if not self._queue.empty():
                self._turns.set()
            if isinstance(item, str):
                self._refresh_head()
                return True
            self._serve(item)
        self._watchdog.beat("serve")
        return True

    def _refresh_head(self) -> None:
        """Have the head learn labels that were changed, without waiting for the next sample."""
        teacher = self._predictor.teacher
        if teacher is None:
            return
        try:
            teacher.refresh()
        except Exception:
            self.errors += 1
            log.exception("serving_failed")

    def _serve(self, item: tuple[Batch, NDArray[np.float64]] | list[LabelUpdate]) -> None:
        """Handle a batch or labels, and what they bring about."""
        began = time.monotonic()
        try:
            self._handle(item)
            if isinstance(item, tuple):
                self._answer_seconds = time.monotonic() - began
            self._report_drift()
        except Exception:
            self.errors += 1
            log.exception("serving_failed")

    def _report_drift(self) -> None:
        for signal in self._predictor.drift.pop_signals():
            self._events.event(DriftDetected(signal.named(self._schema.names)))
            self._supervisor.drifted(signal)
        if self._predictor.pop_quality_drop():
            self._supervisor.fallen()

    def _handle(self, item: tuple[Batch, NDArray[np.float64]] | list[LabelUpdate]) -> None:
        if isinstance(item, list):
            self._join([u.offset for u in item], [u.label for u in item])
            return
        batch, received = item
        for start in range(0, len(batch), self._batch):
            part = slice(start, start + self._batch)
            try:
                self._answer(batch, received, part)
            except ModelError as problem:
                self.errors += 1
                log.error("prediction_failed", samples=len(batch.keys[part]), problem=problem.line())

    def _answer(self, batch: Batch, received: NDArray[np.float64], part: slice) -> None:
        offsets, x, keys, predictor = batch.offsets[part], batch.x[part], batch.keys[part], self._predictor
        made = self._rescued(lambda: predictor.predict(offsets, x))
        ids = [
            own if own is not None else f"{self._boot}-{offset}"
            for own, offset in zip(batch.ids[part], offsets.tolist(), strict=True)
        ]
        self._events.predicted(encode(made, ids, keys, batch.ts[part], self._schema.classes))
        self.latencies.add(time.monotonic() - received[part])
        self._requester.answered(batch, part, ids, made)
        self._events.answered(made, keys, batch.ts[part])
        if batch.aside:
            aside = batch.is_aside()[part]
            predictor.ignore(offsets[aside])
            predictor.shadow(offsets[~aside], x[~aside])
        else:
            predictor.shadow(offsets, x)
        self._report_failed()
        if self._schema.labels_itself:
            for change in predictor.detect_anomalies(made, keys, batch.ts[part]).changes:
                self._events.event(AnomalyAlarm(change))
            self._report(predictor.label(offsets, x))
            return
        labelled = [i for i, label in enumerate(batch.labels[part]) if label is not None]
        if labelled:
            labels = batch.labels[part]
            self._join(offsets[labelled].tolist(), [labels[i] for i in labelled], x[labelled])

    def _rescued(self, predict: Callable[[], Predictions]) -> Predictions:
        """Predict; a champion that fails and has no predecessor is replaced, where there is another model."""
        while True:
            failing = self._predictor.champion
            try:
                return predict()
            except ModelError as problem:
                if self._supervisor.rescue(failing, problem.line()) is None:
                    raise

    def _report_failed(self) -> None:
        failed, self._predictor.failed = self._predictor.failed, None
        if failed is not None:
            served, reason = failed
            self._supervisor.champion_failed(served.version, reason)

    def _join(self, offsets: list[int], labels: list[Any], x: NDArray[np.float32] | None = None) -> None:
        y, at = np.asarray(labels, np.float32).reshape(len(labels), -1), np.asarray(offsets, np.int64)
        self._report(self._predictor.label(at, y, x))

    def _report(self, outcome: bool | None) -> None:
        if outcome is not None:
            self._supervisor.probation_ended(self._predictor.champion.version, outcome)
