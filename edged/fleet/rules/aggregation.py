"""Many updates made one: the mean, by a sum that goes on as they come.

McMahan et al. (2017) weigh by samples. What came late is made smaller by its age, as in Xie et al.,
"Asynchronous federated optimization" (2019), and Nguyen et al., "Federated learning with buffered
asynchronous aggregation" (2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edged.errors import NoDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.fleet.rules.layout import Doubles, EncodedUpdate, Layout


@dataclass(frozen=True)
class AdmittedUpdate:
    """The admitted update of one device, laid out."""

    device: str
    samples: int  # its weight where updates are weighed
    factor: float  # what it is multiplied with: clipping, and the discount of what is late
    row: EncodedUpdate


@dataclass(frozen=True)
class Aggregate:
    """Result of the aggregation of a round, of so many devices and samples."""

    change: Doubles  # the `(size,)` float64 difference to its base
    devices: int
    samples: int
    # What a reducer is given again that goes on from the model of the round, such as momentum; by name.
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # devices whose updates do not count in it


class Reducer(Protocol):
    """Aggregates updates, which come in the order of the devices' names."""

    def begin(self, layout: Layout, expected: int) -> None:
        """Prepare for a round: the model's tensors, and the maximum number of updates."""

    def add(self, contribution: AdmittedUpdate) -> None:
        """Add the update of one device."""

    def finish(self) -> Aggregate:
        """Return the aggregate; NoDataError if there were no updates."""


def discount(late: int, exponent: float) -> float:
    """What an update is multiplied with that comes `late` rounds after its own: `(1 + late) ** -exponent`.

    >>> discount(0, 0.5), discount(3, 0.5)
    (1.0, 0.5)
    """
    return float((1 + late) ** -exponent)


class Mean:
    """The mean of all updates, weighed by samples; the same memory for any number of devices."""

    def begin(self, layout: Layout, expected: int) -> None:  # noqa: ARG002  no room is needed
        """Start a sum at 0."""
        self._layout = layout
        self._sum = np.zeros(layout.size, np.float64)
        self._devices = self._samples = 0

    def add(self, contribution: AdmittedUpdate) -> None:
        """Add an update, weighted by its samples."""
        change = self._layout.change(contribution.row)
        self._sum += np.multiply(change, contribution.samples * contribution.factor, dtype=np.float64)
        self._devices += 1
        self._samples += contribution.samples

    def finish(self) -> Aggregate:
        """Divide the sum by the number of samples."""
        if not self._samples:
            raise NoDataError("no update to average")
        return Aggregate(self._sum / self._samples, self._devices, self._samples)


MOVED = "moved"


class FedDyn:
    """A reducer whose aggregate the updates of earlier rounds go on to move.

    The coordinator's half of dynamic regularisation, see `edged.domain.federated.feddyn`. `memory` is what
    the aggregate of the base has left. Of a fleet of `population` devices, at least those of the round, the
    others have not moved.
    """

    def __init__(self, inner: Reducer, memory: Mapping[str, NDArray[Any]], population: int) -> None:
        self._inner, self._memory, self._population = inner, memory, population

    def begin(self, layout: Layout, expected: int) -> None:
        """Prepare for a round, see `Reducer`."""
        self._inner.begin(layout, expected)

    def add(self, contribution: AdmittedUpdate) -> None:
        """Add the update of one device, see `Reducer`."""
        self._inner.add(contribution)

    def finish(self) -> Aggregate:
        """The aggregate, moved on by the mean of all updates so far, this round's among them."""
        made = self._inner.finish()
        share = made.devices / max(made.devices, self._population)
        moved = share * made.change
        before = self._memory.get(MOVED)
        if before is not None and before.shape == moved.shape:
            moved = before + moved
        return replace(made, change=made.change + moved, memory={**made.memory, MOVED: moved})
