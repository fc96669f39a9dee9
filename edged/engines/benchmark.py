"""Which engine is faster on this machine, for this bundle: both are timed, taking turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.errors import TrainingError

if TYPE_CHECKING:
    from edged.domain.bundle_contents import BundleContents
    from edged.domain.protocols import Engine

Floats = NDArray[np.float32]

# Seconds of processor time for all turns, and of one turn: so short that some turns of each engine pass
# undisturbed even on a busy machine. A turn has a step at least.
BUDGET = 0.4
TURN = 0.002
TURNS = (4, 100)
# So small that random labels cannot drive the weights anywhere.
RATE = 1e-6


@dataclass(frozen=True)
class Workload:
    """What a training run asks of an engine: rows in a batch, threads, batches in an update."""

    batch: int
    threads: int = 1
    accumulate: int = 1


@dataclass(frozen=True)
class Timing:
    """Microseconds of a training step of `batch` rows, by engine; the best of several turns."""

    us: dict[str, float]
    batch: int

    @property
    def fastest(self) -> str:
        """The engine with the least time."""
        return min(self.us, key=lambda name: self.us[name])

    def line(self) -> str:
        """Return one line for the terminal.

        >>> Timing({"portable": 74.2, "native": 58.4}, 64).line()
        'portable 74 µs, native 58 µs a step of 64 rows'
        """
        times = ", ".join(f"{name} {us:.0f} µs" for name, us in self.us.items())
        return f"{times} a step of {self.batch} rows"


def measure(bundle: BundleContents, names: Sequence[str], work: Workload) -> Timing:
    """Time the named engines on random rows of the bundle's shape, optimizer included.

    Raises EdgedError when one of them cannot be opened or does not take a step.
    """
    engines = [open_engine(name, bundle, work.threads) for name in names]
    x, y = rows_for(bundle, engines[0], work.batch)
    turns = [_Turn(engine, x, y, work) for engine in engines]
    for turn in turns:
        turn.warm_up()
    began, done = time.process_time(), 0
    while done < TURNS[0] or (done < TURNS[1] and time.process_time() - began < BUDGET):
        # Whoever goes first finds the caches of the other: they change places.
        for turn in turns if done % 2 == 0 else reversed(turns):
            turn.measure()
        done += 1
    return Timing({engine.name: turn.best * 1e6 for engine, turn in zip(engines, turns, strict=True)}, len(x))


class _Turn:
    """Some training steps of one engine, again and again, as a training run makes them."""

    def __init__(self, engine: Engine, x: Floats, y: NDArray[Any], work: Workload) -> None:
        self._engine, self._x, self._y, self._accumulate = engine, x, y, work.accumulate
        # One thread's processor time is its time on a machine that is idle, whoever else is at work.
        self._clock = time.process_time if work.threads == 1 else time.perf_counter
        self.best = float("inf")
        self._updates = 1
        engine.begin(LearningRate(RATE))

    def warm_up(self) -> None:
        """Allocate memory with the first steps, and find how many make a turn."""
        self._updates = max(1, int(TURN / (self._seconds() * self._accumulate)))
        self.best = float("inf")

    def _seconds(self) -> float:
        """A step's time, once the memory is there."""
        self.measure()
        self.best = float("inf")
        self.measure()
        return max(self.best, 1e-9)

    def measure(self) -> None:
        """One turn; keeps the best time of a step in seconds."""
        began = self._clock()
        for _ in range(self._updates):
            self._update()
        self.best = min(self.best, (self._clock() - began) / (self._updates * self._accumulate))

    def _update(self) -> None:
        for part in range(1, self._accumulate + 1):
            step = self._engine.step(self._x, self._y, apply=part == self._accumulate)
        if not step.applied:
            raise TrainingError(f"a trial step on random rows gives a loss of {step.loss}", where="step")


def rows_for(bundle: BundleContents, engine: Engine, count: int) -> tuple[Floats, NDArray[Any]]:
    """Random rows `(count, d)` float32 in raw units, and labels for them as the loss takes them.

    Standardised values are uniform in [0, 1): where the graph reads them as indices, 0 is one always.
    """
    rng = np.random.default_rng(0)
    x = rng.random((count, bundle.input.width))
    if bundle.standardise is not None:
        values = engine.parameters()
        x = x / values[bundle.standardise["scale"]] + values[bundle.standardise["mean"]]
    shape = (count, *bundle.label.row)
    if bundle.label.dtype == "int64":
        return x.astype(np.float32), rng.integers(0, max(1, bundle.output.width), shape)
    return x.astype(np.float32), rng.integers(0, 2, shape).astype(np.float32)
