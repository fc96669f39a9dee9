"""What an update may tell of a device's data: its norm is bounded, noise joins it, and a ledger adds up.

The device adds the noise itself: nobody else needs to be trusted with what lies below it. The ledger
counts in zero-concentrated differential privacy: Gaussian noise of standard deviation s on what changes by D
at most costs rho = D^2 / (2 s^2), and costs add up (Bun and Steinke, "Concentrated differential privacy",
2016).
Two data sets are neighbours when all of a device's data is replaced: an update of norm C at most then changes
by 2 C, so a round at multiplier z costs 2 / z^2. Rho is told as (epsilon, delta) by Canonne, Kamath and
Steinke, "The discrete Gaussian for differential privacy" (2020), proposition 12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.training.message import Message
from edged.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]

_ORDERS = np.concatenate([1.0 + np.geomspace(1e-4, 1.0, 400), np.geomspace(2.0, 1e7, 2000)])


def norm(change: Weights) -> float:
    """L2 norm over all tensors together."""
    return math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in change.values()))


def clipped(change: Weights, bound: float) -> dict[str, NDArray[np.float32]]:
    """The change, scaled down where its norm is above `bound`; 0 bounds nothing.

    >>> clipped({"w": np.array([3.0, 4.0], np.float32)}, 1.0)["w"].tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    length = norm(change)
    if not bound or length <= bound:
        return {name: value.copy() for name, value in change.items()}
    return {name: np.asarray(value * (bound / length), np.float32) for name, value in change.items()}


def noised(change: Weights, deviation: float, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Each number with Gaussian noise of this standard deviation.

    The generator must be seeded from the system's randomness: who knows the seed can take the noise off.
    """
    return {
        name: np.asarray(value + rng.normal(0.0, deviation, value.shape), np.float32)
        for name, value in change.items()
    }


def cost_of(multiplier: float) -> float:
    """Rho of one update with noise of `multiplier` times the bound of its norm; infinite without noise.

    >>> cost_of(2.0)
    0.5
    """
    return 2.0 / multiplier**2 if multiplier > 0 else math.inf


def epsilon_of(rho: float, delta: float) -> float:
    """The epsilon of (epsilon, delta)-differential privacy that follows from rho.

    It is the least over orders a of rho a + (ln(1/delta) + (a - 1) ln(1 - 1/a) - ln a) / (a - 1). Raises
    ConfigError when `delta` is not between 0 and 1.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigError("delta lies between 0 and 1", where="fleet.delta", remedy="for example 1e-5")
    if rho == 0.0 or math.isinf(rho):
        return rho
    a = _ORDERS
    found = rho * a + (-math.log(delta) + (a - 1) * np.log1p(-1 / a) - np.log(a)) / (a - 1)
    return max(0.0, float(found.min()))


@dataclass(frozen=True)
class PrivacyLedger(Message):
    """What a device has given away: rho in all, in so many updates; its JSON is on the disk.

    >>> PrivacyLedger().charged(4.0).charged(4.0)
    PrivacyLedger(rho=0.25, updates=2)
    """

    rho: float = 0.0
    updates: int = 0

    def charged(self, multiplier: float) -> PrivacyLedger:
        """The same after one more update."""
        return PrivacyLedger(self.rho + cost_of(multiplier), self.updates + 1)

    def refusal(self, multiplier: float, epsilon: float, delta: float) -> str:
        """Why one more update would be too much, in words; empty when it would not."""
        if multiplier <= 0:
            return "privacy: rounds of this fleet add no noise"
        after = epsilon_of(self.rho + cost_of(multiplier), delta)
        return "" if after <= epsilon else f"privacy: one more update would pass epsilon {epsilon:g}"
