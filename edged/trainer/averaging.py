"""Averages of the weights, kept beside those in the engine and put into it while they are looked at."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from edged.domain.protocols import Engine
    from edged.domain.training.weight_averaging import Average

EVERY = 8  # steps between two looks at the weights; a run's last ones count, too


def follow(
    average: Average, engine: Engine, *, before: int, step: int, last: int, apart: Iterable[str]
) -> None:
    """Let the averages follow the engine's weights, where a look at them is due.

    Parameters
    ----------
    average
        Both of them.
    engine
        Whose weights it follows.
    before, step
        Steps of the run before and after those that were just made.
    last
        Steps of the whole run.
    apart
        Parameters that are not averaged: statistics of inputs and targets.
    """
    if average.decay <= 0 or (step % EVERY and step < last):
        return
    left_out = set(apart)
    weights = {name: value for name, value in engine.parameters().items() if name not in left_out}
    if all(np.isfinite(value).all() for value in weights.values()):
        average.follow(weights, step - before // EVERY * EVERY)


def judge(average: Average, engine: Engine, x: NDArray[np.float32], y: NDArray[Any]) -> None:
    """Test both averages on rows that neither has learned from."""
    if average.values is None or len(x) == 0:
        return
    with in_place(average.short, engine):
        short = _loss(engine, x, y)
    with in_place(average.values, engine):
        long = _loss(engine, x, y)
    average.judge(short, long, len(x))


@contextmanager
def in_place(weights: Mapping[str, NDArray[np.float32]] | None, engine: Engine) -> Iterator[None]:
    """The engine with other weights in it; with None, with its own."""
    own = engine.parameters()
    engine.set_parameters(weights or {})
    try:
        yield
    finally:
        engine.set_parameters(own)


def _loss(engine: Engine, x: NDArray[np.float32], y: NDArray[Any]) -> float:
    try:
        return engine.evaluate(x, y)
    except TrainingError:
        return float("nan")  # a graph may fail on numbers that are not finite
