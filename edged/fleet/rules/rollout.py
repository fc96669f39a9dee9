"""How a model spreads within a stage: so many devices an hour, at their hours, within a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edged.domain.federated.audience import BUDGET_USED, DAY_SECONDS, Hours
from edged.fleet.rules.rounds import FleetState, trial

if TYPE_CHECKING:
    from edged.domain.federated.messages import DeviceState
    from edged.domain.federated.settings import BaseModelInfo

STEP_SECONDS = 60.0
"""Devices that get the model are named all together in one message to all, so at most once a minute."""
PATIENCE = 2 * DAY_SECONDS
"""After so long without a device that could be given the model, the rest of a stage is left out."""


@dataclass(frozen=True)
class SpreadLimits:
    """What a rollout allows; `rate` in devices an hour, `fleet_bytes` a day (UTC), None for any."""

    rate: float | None = None
    hours: Hours | None = None
    fleet_bytes: int | None = None
    wait: float = 600.0  # seconds for the reports after the last device was named


def begun(
    course: FleetState, model: BaseModelInfo, stage: int, names: tuple[str, ...], now: float, keep: int
) -> FleetState:
    """Begin a stage: its devices get the model as `spread` allows; those that have tried it stay named."""
    announced = course.round
    tried = announced.devices or () if announced is not None and course.phase != "open" else ()
    queue = tuple(name for name in names if name not in tried)
    return replace(trial(course, model, tried, stage, now, keep, course.asked), queue=queue, told_at=0.0)


def spread(
    course: FleetState, states: Mapping[str, DeviceState], limits: SpreadLimits, now: float
) -> FleetState:
    """Name those devices of the queue that may get the model now; the same state when there are none.

    Devices without a state in `states` are left out.
    """
    announced = course.round
    if announced is None or not course.queue:
        return course
    queue = tuple(name for name in course.queue if name in states)
    due = [name for name in queue if _awake(states[name], limits, now)]
    batch = _affordable(course, due[: _allowed(course, limits, now)], states, limits, now)
    if batch:
        named = tuple(sorted({*(announced.devices or ()), *batch}))
        until = now + limits.wait
        announced = replace(announced, devices=named, deadline=until)
        left = tuple(name for name in queue if name not in batch)
        at = _paid_until(course, len(batch), limits, now)
        spent = sum(fetched(states[name], announced.base) for name in batch)
        course = replace(course, round=announced, queue=left, until=until, told_at=at)
        return charged(course, spent, now)
    if queue and now - course.until > PATIENCE:
        queue = ()
    return course if queue == course.queue else replace(course, queue=queue)


def _awake(state: DeviceState, limits: SpreadLimits, now: float) -> bool:
    hours = limits.hours
    return state.why_not != BUDGET_USED and (hours is None or hours.include(now, state.offset or 0))


def _allowed(course: FleetState, limits: SpreadLimits, now: float) -> int:
    """How many devices the rate allows at this moment."""
    if limits.rate is None:
        return len(course.queue)
    if not course.told_at:  # the first of a stage, as many as in a minute
        return max(1, int(limits.rate * STEP_SECONDS / 3600))
    passed = now - course.told_at
    return int(limits.rate * passed / 3600) if passed >= STEP_SECONDS else 0


def _paid_until(course: FleetState, count: int, limits: SpreadLimits, now: float) -> float:
    """The moment up to which the rate is used up; what it allowed and nobody could use is lost."""
    if limits.rate is None or not course.told_at:
        return now
    return max(course.told_at + count * 3600 / limits.rate, now - STEP_SECONDS)


def _affordable(
    course: FleetState, names: list[str], states: Mapping[str, DeviceState], limits: SpreadLimits, now: float
) -> list[str]:
    if course.round is None:
        return []
    kept, left = [], remaining(course, limits.fleet_bytes, now)
    for name in names:
        left -= fetched(states[name], course.round.base)
        if left < 0:
            break
        kept.append(name)
    return kept


def fetched(state: DeviceState | None, model: BaseModelInfo) -> int:
    """Bytes that a device fetches for a model: none for the one that it took last."""
    return 0 if state is not None and state.model == model.hash else model.bytes


def remaining(course: FleetState, budget: int | None, now: float) -> float:
    """Bytes that devices may still fetch and send today."""
    if budget is None:
        return math.inf
    return budget - (course.traffic if course.day == int(now // DAY_SECONDS) else 0)


def charged(course: FleetState, size: int, now: float) -> FleetState:
    """After devices were asked to fetch and send so many bytes."""
    day = int(now // DAY_SECONDS)
    return replace(course, day=day, traffic=(course.traffic if course.day == day else 0) + size)


def overspread(
    worse: int, silent: int, reports: int, named: int, *, ended: bool, abort: float | None, least: int
) -> str:
    """Why a rollout is to be ended at once, in words; empty when it is not.

    Of `named` devices `reports` have reported and `worse` do worse; `silent` ones count when the stage has
    `ended`, else those that have reported decide, `least` of them.

    >>> overspread(2, 8, 5, 15, ended=False, abort=0.3, least=5)
    'worse for 2 of 5 devices, more than 30 %'
    >>> overspread(1, 3, 7, 10, ended=True, abort=0.3, least=5)
    'worse for 1 and no report from 3 of 10 devices, more than 30 %'
    >>> overspread(2, 8, 4, 15, ended=False, abort=0.3, least=5)
    ''
    """
    if abort is None:
        return ""
    if reports >= min(least, named) and worse > abort * reports:
        return f"worse for {worse} of {reports} devices, more than {abort:.0%}".replace("%", " %")
    if ended and worse + silent > abort * named:
        text = f"worse for {worse} and no report from {silent} of {named} devices, more than {abort:.0%}"
        return text.replace("%", " %")
    return ""
