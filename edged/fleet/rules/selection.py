"""Which devices take part in a round, by what they say of themselves.

A device that trains should have nothing better to do and enough to learn from (Bonawitz et al., "Towards
federated learning at scale", 2019): it is idle, charged and cool. Of those that are, chance decides, so that
no group of devices makes the model alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.domain.federated.messages import DeviceState
    from edged.fleet.config import ChooseSection


def fits(wanted: ChooseSection, state: DeviceState, bundle: str, now: float) -> bool:
    """Whether a device would do, which has to have the fleet's bundle."""
    return (
        state.ready
        and state.bundle == bundle
        and state.samples >= wanted.min_samples
        and now - state.at <= wanted.max_age
        and (state.idle or not wanted.idle)
        and (state.charged or not wanted.charged)
        and (state.cool or not wanted.cool)
    )


def eligible(states: Iterable[DeviceState], wanted: ChooseSection, bundle: str, now: float) -> list[str]:
    """List the devices that meet the requirements, by name."""
    return sorted(state.device for state in states if fits(wanted, state, bundle, now))


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
