"""What the parts of a device tell each other, typed: one method a kind of news.

A part that has news calls a method of `Events`. Extensions hear it: each is a `Listener` and overrides the
methods for what concerns it. Whoever must act for the data to go on (a sample to its prediction, a label to
its sample) is no listener: stages call each other directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """Passes all news, each by the method of `Listener`, to every listener in the order of their addition."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = list(listeners)

    def add(self, listener: Listener) -> None:
        """Let `listener` hear everything from now on."""
        self.listeners.append(listener)


def _pass_on(name: str) -> Callable[..., None]:
    def method(events: Events, *news: object) -> None:
        for listener in events.listeners:
            getattr(listener, name)(*news)

    return method


for _name in [name for name in vars(Listener) if not name.startswith("_")]:
    setattr(Events, _name, _pass_on(_name))


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
