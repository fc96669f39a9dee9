"""Which devices take part in a round, by what they say of themselves.

A device that trains should have nothing better to do and enough to learn from (Bonawitz et al., "Towards
federated learning at scale", 2019): it is idle, charged and cool. Of those that are, chance decides, so that
no group of devices makes the model alone.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from edged.domain.federated.messages import DeviceState


@dataclass(frozen=True)
class ClientSelection:
    """Requirements that a device must meet to be chosen.

    Attributes
    ----------
    min_samples
        New labelled ones.
    max_age
        Seconds since it was last heard.
    idle, charged, cool
        Whether it has to be.
    """

    min_samples: int = 1
    max_age: float = 3600.0
    idle: bool = True
    charged: bool = True
    cool: bool = True

    def fits(self, state: DeviceState, bundle: str, now: float) -> bool:
        """Whether a device would do, which has to have the fleet's bundle."""
        return (
            state.ready
            and state.bundle == bundle
            and state.samples >= self.min_samples
            and now - state.at <= self.max_age
            and all(
                have or not wanted
                for have, wanted in (
                    (state.idle, self.idle),
                    (state.charged, self.charged),
                    (state.cool, self.cool),
                )
            )
        )


def eligible(states: Iterable[DeviceState], wanted: ClientSelection, bundle: str, now: float) -> list[str]:
    """List the devices that meet the requirements, by name."""
    return sorted(state.device for state in states if wanted.fits(state, bundle, now))


def choose(names: Collection[str], count: int, over: float, seed: str) -> tuple[str, ...]:
    """Some devices by lot: `over` times as many as are needed, since some will be silent.

    >>> len(choose([f"d{n}" for n in range(100)], 10, 1.25, "seed"))
    13
    """
    asked = min(len(names), math.ceil(count * over))
    return tuple(sorted(random.Random(seed).sample(sorted(names), asked)))


def share_of(names: Collection[str], share: float, seed: str) -> tuple[str, ...]:
    """A share of devices, one at least, that contains those of every smaller share.

    >>> few = share_of(["a", "b", "c", "d"], 0.5, "seed")
    >>> set(share_of(["a", "b", "c", "d"], 0.1, "seed")) <= set(few), len(few)
    (True, 2)
    """
    order = sorted(names)
    random.Random(seed).shuffle(order)
    return tuple(sorted(order[: max(1, math.ceil(share * len(order)))]))
