"""The coordinator's half of dynamic regularisation; see `edged.domain.federated.feddyn`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edged.fleet.rules.aggregation import AdmittedUpdate, Aggregate, Reducer
    from edged.fleet.rules.layout import Layout

MOVED = "moved"


class FedDyn:
    """A reducer whose aggregate the updates of earlier rounds go on to move.

    Parameters
    ----------
    inner
        Makes one update of many.
    memory
        What the aggregate of the base has left.
    population
        Devices of the fleet: those that take no part have not moved. At least those of the round count.
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
