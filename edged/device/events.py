"""What the parts of a device tell each other, typed: one method a kind of news.

A part that has news calls a method of `Events`. Extensions hear it: each is a `Listener` and overrides the
methods for what concerns it. Whoever must act for the data to go on (a sample to its prediction, a label to
its sample) is no listener: stages call each other directly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edged.device.reports import Report, StreamMetrics
from edged.domain.events import Event
from edged.domain.judging.predictions import Predictions


class Listener:
    """Hears what happens on a device; every method does nothing unless it is overridden.

    Methods are called on the thread that has the news and must return quickly.
    """

    def event(self, event: Event) -> None:
        """Something happened that people hear of."""

    def reported(self, report: Report) -> None:
        """A report was published."""

    def predicted(self, payloads: list[bytes]) -> None:
        """Predictions were made, encoded as they are published."""

    def answered(self, made: Predictions, keys: Sequence[str], ts: NDArray[np.float64]) -> None:
        """The same predictions as values, `n` of each; `ts` `(n,)` is the samples' time in Unix seconds."""

    def metrics(self, metrics: StreamMetrics) -> None:
        """Metrics were read, as they are published."""

    def online(self) -> None:
        """The broker accepted the connection."""

    def connection_changed(self) -> None:
        """The connection to the broker was made or lost."""

    def ready(self) -> None:
        """The daemon is ready: what takes long to load may begin now."""

    def problem_changed(self) -> None:
        """What keeps the daemon from its work has changed; see the field `problem` of its status."""

    def states_changed(self) -> None:
        """A retained state may have changed."""

    def champion_changed(self, version: int) -> None:
        """Another model serves, made durable; `version` is its number in the registry."""

    def erased(self) -> None:
        """The samples were erased; what was made of them is to be forgotten."""


class Events(Listener):
    """Passes news on to every listener, in the order in which they were added."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = list(listeners)

    def add(self, listener: Listener) -> None:
        """Let `listener` hear everything from now on."""
        self._listeners.append(listener)

    def event(self, event: Event) -> None:
        """Pass the news on: see `Listener.event`."""
        for listener in self._listeners:
            listener.event(event)

    def reported(self, report: Report) -> None:
        """Pass the news on: see `Listener.reported`."""
        for listener in self._listeners:
            listener.reported(report)

    def predicted(self, payloads: list[bytes]) -> None:
        """Pass the news on: see `Listener.predicted`."""
        for listener in self._listeners:
            listener.predicted(payloads)

    def answered(self, made: Predictions, keys: Sequence[str], ts: NDArray[np.float64]) -> None:
        """Pass the news on: see `Listener.answered`."""
        for listener in self._listeners:
            listener.answered(made, keys, ts)

    def metrics(self, metrics: StreamMetrics) -> None:
        """Pass the news on: see `Listener.metrics`."""
        for listener in self._listeners:
            listener.metrics(metrics)

    def online(self) -> None:
        """Pass the news on: see `Listener.online`."""
        for listener in self._listeners:
            listener.online()

    def connection_changed(self) -> None:
        """Pass the news on: see `Listener.connection_changed`."""
        for listener in self._listeners:
            listener.connection_changed()

    def ready(self) -> None:
        """Pass the news on: see `Listener.ready`."""
        for listener in self._listeners:
            listener.ready()

    def problem_changed(self) -> None:
        """Pass the news on: see `Listener.problem_changed`."""
        for listener in self._listeners:
            listener.problem_changed()

    def states_changed(self) -> None:
        """Pass the news on: see `Listener.states_changed`."""
        for listener in self._listeners:
            listener.states_changed()

    def champion_changed(self, version: int) -> None:
        """Pass the news on: see `Listener.champion_changed`."""
        for listener in self._listeners:
            listener.champion_changed(version)

    def erased(self) -> None:
        """Pass the news on: see `Listener.erased`."""
        for listener in self._listeners:
            listener.erased()


class Extension(Listener):
    """A part of the device that the loop does not need: started after it, stopped before it."""

    @property
    def problem(self) -> str | None:
        """What keeps it from its work, in one line; None where nothing does."""
        return None

    def start(self) -> None:
        """Begin to work; subscriptions made here take effect with the first connection."""

    def stop(self) -> None:
        """End; safe to call when it was never started."""
