"""The aggregate of a round, and the model that comes of it."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.federated.reduce import Contribution, Mean
from edged.domain.federated.robust import Matrix, median, trimmed_mean
from edged.errors import NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.domain.deltas import Weights
    from edged.domain.federated.layout import Layout
    from edged.domain.federated.reduce import Aggregate, Reducer
    from edged.fleet.config import FleetConfig


def reducer_of(config: FleetConfig) -> Reducer:
    """What the configuration wants; its matrix lies in a file, so that it is not all in memory."""
    if config.reduce.how == "mean":
        return Mean()

    def room(shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
        return _in_file(config.dir, shape, dtype)

    statistic = median if config.reduce.how == "median" else trimmed_mean(config.reduce.trim)
    return Matrix(statistic, room, "int8" if config.train.dtype == "int8" else "float32")


def _in_file(folder: Path, shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def reduced(
    reducer: Reducer, layout: Layout, records: Iterable[tuple[dict[str, Any], bytes]], count: int
) -> Aggregate:
    """One aggregate of all updates, in the order in which they are given."""
    reducer.begin(layout, count)
    for head, data in records:
        row = layout.from_bytes(data)
        reducer.add(Contribution(head["device"], head["samples"], head["factor"], row))
    return reducer.finish()


def advanced(base: Weights, aggregate: Aggregate, layout: Layout, rate: float) -> Weights:
    """The weights after a round.

    Raises
    ------
    NonFiniteError
        When they are not all finite.
    """
    vector = layout.vector(base).astype(np.float64) + rate * aggregate.change
    if not np.isfinite(vector.astype(np.float32)).all():
        raise NonFiniteError("the model of the round has numbers that are not finite", where="fleet")
    return layout.weights(vector)
