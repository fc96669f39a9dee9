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

from edged.domain.federated.audience import outside

if TYPE_CHECKING:
    from edged.domain.federated.audience import Hours
    from edged.domain.federated.messages import DeviceState
    from edged.fleet.config import ChooseSection


def why_not(
    wanted: ChooseSection, state: DeviceState, bundle: str, now: float, hours: Hours | None = None
) -> str:
    """Why a device would not do, in words; empty when it would.

    It has to have the fleet's bundle, and the time of its day has to be within `hours`.
    """
    away = outside(hours, now, state.offset or 0)
    reasons = (
        (now - state.at > wanted.max_age, f"not heard for {wanted.max_age:g} s"),
        (state.bundle != bundle, f"has bundle {state.bundle[:12]}, the fleet {bundle[:12]}"),
        (bool(away), away),
        (not state.ready, state.why_not or "says that it is not ready"),
        (state.samples < wanted.min_samples, f"fewer than {wanted.min_samples} new labelled samples"),
        (wanted.idle and not state.idle, "trains for itself"),
        (wanted.charged and not state.charged, "has no power"),
        (wanted.cool and not state.cool, "is hot"),
    )
    return next((words for so, words in reasons if so), "")


def eligible(
    states: Iterable[DeviceState], wanted: ChooseSection, bundle: str, now: float, hours: Hours | None = None
) -> list[str]:
    """List the devices that meet the requirements, by name."""
    return sorted(state.device for state in states if not why_not(wanted, state, bundle, now, hours))


def choose(names: Collection[str], count: int, over: float, seed: str) -> tuple[str, ...]:
    """Some devices by lot: `over` times as many as are needed, since some will be silent.

    >>> len(choose([f"d{n}" for n in range(100)], 10, 1.25, "seed"))
    13
    """
    asked = min(len(names), math.ceil(count * over))
    return tuple(sorted(random.Random(seed).sample(sorted(names), asked)))


def share_of(names: Collection[str], share: float, seed: str, least: int = 1) -> tuple[str, ...]:
    """A share of devices, `least` where there are so many, that contains those of every smaller share.

    >>> few = share_of(["a", "b", "c", "d"], 0.5, "seed")
    >>> set(share_of(["a", "b", "c", "d"], 0.1, "seed")) <= set(few), len(few)
    (True, 2)
    """
    order = sorted(names)
    random.Random(seed).shuffle(order)
    return tuple(sorted(order[: max(least, math.ceil(share * len(order)))]))
