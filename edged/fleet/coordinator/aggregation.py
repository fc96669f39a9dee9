"""The aggregate of a round, and the model that comes of it."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edged import signing
from edged.errors import NoDataError, NonFiniteError, UnavailableError
from edged.fleet.rules.admission import bound
from edged.fleet.rules.aggregation import AdmittedUpdate, Aggregate, FedDyn, Mean
from edged.fleet.rules.robust import Matrix, UpdateDirections, median, trimmed_mean
from edged.fleet.rules.statistics import outliers, total_of
from edged.storage.files.atomic import disk_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.training.weight_deltas import Weights
    from edged.fleet.config import CoordinatorConfig
    from edged.fleet.coordinator.updates import StoredUpdate
    from edged.fleet.rules.aggregation import Reducer
    from edged.fleet.rules.layout import Layout
    from edged.fleet.rules.statistics import SolvedHead

    ReducerOf = Callable[[CoordinatorConfig, Weights, int, Mapping[str, NDArray[Any]]], Reducer]


def require_packages(config: CoordinatorConfig) -> None:
    """Raise UnavailableError, at the start already, where the reducer needs a package that is not there."""
    if config.reduce.how == "flower":
        _flower_reducers()
    if config.masks.enabled and not signing.available():
        raise UnavailableError(
            "the package cryptography is not installed",
            where="masks.enabled",
            remedy='pip install "edged[signing]"',
        )


def _flower_reducers() -> ReducerOf:
    from importlib.metadata import entry_points

    for point in entry_points(group="edged.reducers", name="flower"):
        found: ReducerOf = point.load()()
        return found
    raise UnavailableError(
        "edged-flower is not installed",
        where="reduce.how: flower",
        remedy="pip install edged-flower, or ./deploy/flower of a checkout",
    )


def reducer_of(
    config: CoordinatorConfig,
    base: Weights,
    number: int,
    memory: Mapping[str, NDArray[Any]],
    population: int = 0,
) -> Reducer:
    """What the configuration wants for round `number`, from `base` on, in a fleet of `population` devices.

    The matrix of a robust one lies in a file, so that it is not all in memory. `memory` is what the reducer
    that made `base` has left.
    """
    reducer: Reducer
    if config.reduce.how == "mean":
        reducer = Mean()
    elif config.reduce.how == "flower":
        reducer = _flower_reducers()(config, base, number, memory)
    else:
        statistic = median if config.reduce.how == "median" else trimmed_mean(config.reduce.trim)
        dtype: Literal["int8", "float32"] = "int8" if config.train.dtype == "int8" else "float32"
        directions = UpdateDirections(memory) if config.reduce.opposed == "leave_out" else None
        reducer = Matrix(statistic, FileMatrix(config.dir), dtype, directions)
    return FedDyn(reducer, memory, population) if config.train.dynamic else reducer


class FileMatrix:
    """Room for a matrix in a file without a name in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._map: mmap.mmap | None = None

    def matrix(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Room for one; StorageError where the disk has none."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with disk_errors("making room for updates", self._folder), TemporaryFile(dir=self._folder) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))
            self._map = mmap.mmap(file.fileno(), max(1, size))
        return np.frombuffer(self._map, dtype, math.prod(shape)).reshape(shape)

    def release(self) -> None:
        """What was written is in the file, or waits in the kernel to be."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


def reduced(
    reducer: Reducer, layout: Layout, records: Iterable[tuple[StoredUpdate, bytes]], count: int
) -> Aggregate:
    """One aggregate of all updates, in the order in which they are given."""
    reducer.begin(layout, count)
    for head, data in records:
        row = layout.from_bytes(data)
        reducer.add(AdmittedUpdate(head.device, head.samples, head.factor, row))
    return reducer.finish()


def solved(
    head: SolvedHead,
    config: CoordinatorConfig,
    base: Weights,
    records: Callable[[], Iterable[tuple[StoredUpdate, bytes]]],
) -> tuple[Weights, Aggregate]:
    """The base with the last layers that the sums of all devices give, and what came into them.

    Devices whose inputs or numbers to predict are far larger than those of the others are left out. `records`
    gives all sums anew each time. Raises NoDataError as `HeadStatistics.solved`.
    """
    energies, targets = {}, {}
    for header, data in records():
        sums = head.read(np.frombuffer(data))
        energies[header.device], targets[header.device] = sums.energy, sums.target_energy
    most = config.admit.max_norm
    apart = sorted({*outliers(energies, most), *outliers(targets, most)})
    rest = ((header, data) for header, data in records() if header.device not in apart)
    total = total_of(head, ((header.factor, np.frombuffer(data)) for header, data in rest))
    weights = head.model(base, total, config.statistics)
    left_out = tuple(apart)
    return weights, Aggregate(np.zeros(0), len(energies) - len(apart), round(total.rows), left_out=left_out)


def summed(
    head: SolvedHead | None,
    config: CoordinatorConfig,
    base: Weights,
    layout: Layout,
    total: NDArray[np.float64],
) -> Weights:
    """The model that the sum of vectors under masks leads to; `head` in rounds of statistics.

    Raises NoDataError when they are of no sample, NonFiniteError when no honest devices can have such a sum.
    """
    if head is not None:
        return head.model(base, head.read(total), config.statistics)
    weight = float(total[-1])
    if weight <= 0:
        raise NoDataError("the updates of the round weigh nothing", where="masks")
    change = total[:-1] / weight
    norm, most = float(np.linalg.norm(change)), bound(config.settings, layout.size)
    if not norm <= config.admit.max_norm * most:
        raise NonFiniteError(f"the mean has the norm {norm:.3g}, the bound is {most:.3g}", where="masks")
    return advanced(base, Aggregate(change, 0, 0), layout, config.reduce.rate)


def finite(weights: Weights) -> Weights:
    """The same weights; NonFiniteError when they are not all finite."""
    if not all(np.isfinite(value).all() for value in weights.values()):
        raise NonFiniteError("the model of the round has numbers that are not finite", where="fleet")
    return weights


def advanced(base: Weights, aggregate: Aggregate, layout: Layout, rate: float) -> Weights:
    """Compute the weights after a round; NonFiniteError when they are not all finite."""
    vector = layout.vector(base).astype(np.float64) + rate * aggregate.change
    with np.errstate(over="ignore"):
        return finite(layout.weights(vector))
