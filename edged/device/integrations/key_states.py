"""The newest prediction of each key, and the label that holds for it, as retained states of few messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edged.clock import Clock
from edged.domain.home_assistant import labelling_state, prediction_state
from edged.domain.judging.predictions import Predictions
from edged.domain.labels.held_labels import HeldLabels
from edged.domain.stream.arrivals import KeyArrivals
from edged.domain.stream.sample import HeldLabel
from edged.domain.stream.schema import Schema
from edged.domain.training.message import Message

MOST_KEYS = 32
CHANGE_SECONDS = 0.5  # between two messages of a key at least, however often its label changes
EVERY_SECONDS = 10.0  # between two messages of a key whose label stays
FORGET_SECONDS = 86_400.0  # a key that is silent for so long makes room for another
LOOK_SECONDS = 60.0  # between two looks for such a key
URGENT_SECONDS = 0.1  # between two calls for `publish`, of all keys
AHEAD_SECONDS = 60.0  # a sample from further in the future does not make later ones old

Send = Callable[[str, Message], bool]
"""Publishes a state, below `state/`; False when it was not taken."""


@dataclass(frozen=True)
class PredictionState(Message):
    """The state `prediction` of a key; without a time there is no prediction since the daemon started."""

    key: str
    ts: float | None = None  # Unix seconds, of the newest sample
    label: str | None = None
    confidence: float | None = None
    output: tuple[float, ...] | None = None
    model: int | None = None
    alarm: bool = False
    silent: bool = False
    untrained: bool = False

    def differs(self, other: PredictionState) -> bool:
        """Whether more has changed than time and numbers."""
        ours, theirs = ((state.label, state.alarm, state.silent, state.untrained) for state in (self, other))
        return ours != theirs


@dataclass(frozen=True)
class LabellingState(Message):
    """The state `labelling` of a key: the class that holds."""

    key: str
    label: str | None


@dataclass(slots=True)
class KeyState(KeyArrivals):
    """One key: when its samples came, what is known of it, and what was published of that.

    `said` is the newest prediction; None until there is one since the daemon started.
    """

    said: PredictionState | None = None
    alarm: bool = False
    published: PredictionState | None = None
    published_at: float = float("-inf")
    label: LabellingState | None = None

    def prediction(self, key: str, *, silent: bool) -> PredictionState:
        """Return the state `prediction` of this key."""
        return replace(self.said or PredictionState(key), alarm=self.alarm, silent=silent)

    def is_due(self, state: PredictionState, monotonic: float) -> bool:
        """Whether `state` is to be published by now."""
        if self.published is None or self.published == state:
            return self.published is None
        pause = CHANGE_SECONDS if self.published.differs(state) else EVERY_SECONDS
        return monotonic - self.published_at >= pause


class KeyStates:
    """The states of up to `MOST_KEYS` keys; usable from any thread.

    `keys` are those of an earlier start: their predictions are of then, so they count as silent.
    """

    def __init__(self, schema: Schema, clock: Clock, keys: Iterable[str]) -> None:
        self._schema = schema
        self._clock = clock
        self._lock = threading.Lock()
        now = clock.monotonic()
        self._states = {key: KeyState(now) for key in keys}
        self._full_until = self._urged = float("-inf")
        self.classes: tuple[str, ...] = ()
        """The classes that were announced: a label that is none of them waits."""

    @property
    def keys(self) -> list[str]:
        """The keys that are followed, oldest first."""
        with self._lock:
            return list(self._states)

    def forget(self) -> None:
        """Forget all keys that are followed."""
        with self._lock:
            self._states.clear()

    def repeat(self) -> None:
        """Publish everything again with the next `publish`."""
        with self._lock:
            for state in self._states.values():
                state.published, state.label = None, None

    # ---- what happens ----------------------------------------------------------------------

    def answered(self, made: Predictions, keys: Sequence[str], ts: NDArray[np.float64]) -> bool:
        """Take in predictions of samples `(n,)`; whether something is to be published or announced now."""
        last, counts = dict(zip(keys, range(len(keys)), strict=True)), Counter(keys)
        now, urgent = self._clock.monotonic(), False
        with self._lock:
            for key, i in last.items():
                state = self._states.get(key) or self._admit(key, now)
                if state is None:
                    continue
                state.record_arrivals(counts[key], now)
                before = state.said
                if before is not None and ts[i] < (before.ts or 0.0) <= self._clock.now() + AHEAD_SECONDS:
                    continue  # it comes late, and says nothing of now
                state.said = self._said(key, made, i, float(ts[i]))
                urgent |= before is None or before.label != state.said.label
            if not urgent or now - self._urged < URGENT_SECONDS:
                return False
            self._urged = now
        return True

    def _admit(self, key: str, now: float) -> KeyState | None:
        """Follow one more key, if there is room."""
        if len(self._states) >= MOST_KEYS:
            if now < self._full_until:
                return None
            oldest = min(self._states, key=lambda known: self._states[known].heard)
            if now - self._states[oldest].heard < FORGET_SECONDS:
                self._full_until = now + LOOK_SECONDS
                return None
            del self._states[oldest]
        self._states[key] = state = KeyState(now)
        return state

    def _said(self, key: str, made: Predictions, i: int, ts: float) -> PredictionState:
        row, label, confidence = made.output[i], None, None
        finite = bool(np.isfinite(row).all())
        if finite and made.confidence is not None:
            confidence = round(float(made.confidence[i]), 3)
            decided = made.promise is None or not made.promise.undecided[i]
            label = (self._schema.classes[int(made.answers[i, 0])] or None) if decided else None
        output = tuple(float(f"{value:.4g}") for value in row.tolist()) if finite else None
        untrained = made.missing is not None
        return PredictionState(key, ts, label, confidence, output, made.version, untrained=untrained)

    def alarmed(self, key: str, *, alarm: bool) -> None:
        """An alarm of a key begins or ends."""
        with self._lock:
            if key in self._states:
                self._states[key].alarm = alarm

    # ---- what is published -----------------------------------------------------------------

    def publish(self, send: Send, *, silent: bool) -> None:
        """Publish predictions that are due; with `silent` as those of sensors that send nothing."""
        now = self._clock.monotonic()
        with self._lock:
            for key, state in self._states.items():
                quiet = silent or state.said is None or state.is_silent(now)
                made = state.prediction(key, silent=quiet)
                waits = made.label is not None and made.label not in self.classes
                if not waits and state.is_due(made, now) and send(prediction_state(key), made):
                    state.published, state.published_at = made, now

    def publish_labels(self, held: HeldLabels, send: Send) -> None:
        """Publish the labels that hold, where they have changed."""
        if self._schema.task != "classify":
            return
        with self._lock:
            for key, state in self._states.items():
                made = LabellingState(key, self._class_of(held[key]))
                if made == state.label or made.label not in (None, *self.classes):
                    continue
                if send(labelling_state(key), made):
                    state.label = made

    def _class_of(self, held: HeldLabel | None) -> str | None:
        """The name of the class that holds; None for none, or one that was removed."""
        if held is None:
            return None
        y = np.asarray(held.label, np.float32).reshape(1, -1)
        place = int((y if self._schema.open is None else self._schema.open.mapped(y))[0, 0])
        return self._schema.classes[place] or None if place >= 0 else None
