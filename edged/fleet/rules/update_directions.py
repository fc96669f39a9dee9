"""Which way each device's updates have pointed, beside those of the others, over all rounds so far.

A device that turns its updates around points against the others from the first round on. Later rounds say
less: what remains to be learned points a different way on every device. So the mean over rounds counts.
Cosines as in Cao et al., "FLTrust: Byzantine-robust federated learning via trust bootstrapping" (2021), where
the coordinator has data of its own to compare with; here it is the robust aggregate.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

NAMES, SUMS = "directions.devices", "directions.sums"
DEVICES = 100_000  # that are remembered; those that have not sent for longest are forgotten


class UpdateDirections:
    """Sums of cosines between a device's updates and the aggregates, by device."""

    def __init__(self, memory: Mapping[str, NDArray[Any]]) -> None:
        self._sums: dict[str, float] = {}
        if NAMES in memory and SUMS in memory:
            names = json.loads(memory[NAMES].tobytes())
            self._sums = dict(zip(names, memory[SUMS].tolist(), strict=True))

    def saw(self, devices: Sequence[str], cosines: NDArray[np.float64]) -> None:
        """Record the directions of the updates of a round."""
        for device, cosine in zip(devices, cosines.tolist(), strict=True):
            self._sums[device] = self._sums.pop(device, 0.0) + cosine
        for device in list(self._sums)[:-DEVICES]:
            del self._sums[device]

    def opposed(self, devices: Sequence[str]) -> NDArray[np.bool_]:
        """Which of these have pointed against the others more than with them, `(n,)`."""
        return np.array([self._sums.get(device, 0.0) < 0 for device in devices], np.bool_)

    def dump(self) -> dict[str, NDArray[Any]]:
        """Return the record as arrays, for the next round."""
        names = np.frombuffer(json.dumps(list(self._sums)).encode(), np.uint8)
        return {NAMES: names, SUMS: np.array(list(self._sums.values()), np.float64)}
