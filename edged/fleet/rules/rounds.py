"""The course of a fleet's rounds: what comes next, and when. No clock and no broker in here.

    waiting -> open -> trial -> ... -> done -> waiting

A round is opened when enough devices are ready, and closed when as many updates have come as are wanted, or
at its deadline if they are a quorum; else it goes on for as long again, with more devices. Its model is then
tried by a share of the devices after the other, until it is the fleet's model, or the one before stays that.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from edged.domain.federated.messages import RoundAnnouncement
from edged.domain.federated.settings import BaseModelInfo
from edged.fleet.rules.admission import KnownRound

Phase = Literal["waiting", "open", "trial", "done"]


@dataclass(frozen=True)
class RoundPace:
    """Number of devices and deadlines of a round.

    Attributes
    ----------
    devices
        Updates that a round wants.
    over
        How many times as many devices are asked.
    quorum
        Share of `devices` with which it closes at its deadline.
    deadline
        Seconds from opening to closing.
    window
        Seconds over which devices spread what they send.
    every
        Seconds from the end of a round to the next.
    rounds
        After so many it ends; None for never.
    stages
        Shares of devices that try a model, one after the other; none: it is the fleet's at once.
    wait
        Seconds for which a share tries it at most.
    """

    devices: int
    over: float = 1.25
    quorum: float = 0.6
    deadline: float = 3600.0
    window: float = 60.0
    every: float = 0.0
    rounds: int | None = None
    stages: tuple[float, ...] = (0.1, 1.0)
    wait: float = 600.0

    @property
    def least(self) -> int:
        """Minimum number of updates to close a round."""
        return max(1, math.ceil(self.quorum * self.devices))


@dataclass(frozen=True)
class FleetState:
    """Where a fleet is. All of it survives a restart.

    Attributes
    ----------
    number
        Of the round that is under way or was the last; 0 before the first.
    standing
        The fleet's model.
    bundle
        Fingerprint of the bundle that devices need.
    version
        How many models have become the fleet's.
    round
        As it was last told to all; None before the first.
    asked
        The devices that train in it; None for all. Once it is closed also those that did.
    stage
        Which share of the devices tries the model.
    until
        When the present phase ends at the latest, seconds since the epoch.
    past
        Rounds for which updates are still taken, the newest last.
    """

    standing: BaseModelInfo
    bundle: str = ""
    number: int = 0
    version: int = 0
    phase: Phase = "waiting"
    round: RoundAnnouncement | None = None
    asked: tuple[str, ...] | None = None
    stage: int = 0
    until: float = 0.0
    past: tuple[KnownRound, ...] = field(default=())

    @property
    def collecting(self) -> int:
        """The round in which updates count that come now: the open one, or the next."""
        return self.number if self.phase == "open" else self.number + 1

    def known(self) -> dict[int, KnownRound]:
        """Rounds for which updates are accepted, by number."""
        found = {known.number: known for known in self.past}
        if self.phase == "open" and self.round is not None:
            found[self.number] = _remembered(self)
        return found

    def to_json(self) -> dict[str, Any]:
        """Convert the state to JSON values."""
        values = asdict(replace(self, round=None, past=()))
        values["round"] = None if self.round is None else json.loads(self.round.payload())
        values["past"] = [
            [k.number, k.id, k.base, None if k.devices is None else sorted(k.devices)] for k in self.past
        ]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> FleetState:
        """Create a state from the values of `to_json`."""
        past = tuple(
            KnownRound(n, i, b, None if d is None else frozenset(d)) for n, i, b, d in values["past"]
        )
        told = values["round"]
        asked = values["asked"]
        return cls(
            **values
            | {
                "standing": BaseModelInfo(**values["standing"]),
                "round": None if told is None else RoundAnnouncement.read(json.dumps(told).encode()),
                "asked": None if asked is None else tuple(asked),
                "past": past,
            }
        )


def opened(course: FleetState, told: RoundAnnouncement, pace: RoundPace) -> FleetState:
    """Return the state after the next round was opened."""
    return replace(
        course,
        phase="open",
        number=told.round,
        round=told,
        asked=told.devices,
        stage=0,
        until=told.opened + pace.deadline,
    )


def due(course: FleetState, accepted: int, pace: RoundPace, now: float) -> Literal["close", "extend"] | None:
    """What an open round needs: to be closed, or more time and devices."""
    asked = pace.devices if course.asked is None else min(pace.devices, len(course.asked))
    if accepted >= asked or (now >= course.until and accepted >= pace.least):
        return "close"
    return "extend" if now >= course.until else None


def extended(course: FleetState, more: tuple[str, ...], pace: RoundPace, now: float) -> FleetState:
    """Extend the round by its deadline, with more devices."""
    told = _told(course)
    asked = None if course.asked is None else tuple(sorted({*course.asked, *more}))
    until = now + pace.deadline
    return replace(course, asked=asked, until=until, round=replace(told, devices=asked, deadline=until))


def trial(
    course: FleetState,
    model: BaseModelInfo,
    devices: tuple[str, ...] | None,
    stage: int,
    until: float,
    keep: int,
    asked: tuple[str, ...] | None,
) -> FleetState:
    """The round is closed, or the share before has agreed: `devices` try its model now, of all `asked`."""
    past = course.past
    if course.phase == "open":
        past = _kept((*past, _remembered(course)), course.number, keep)
    told = replace(_told(course), state="closed", base=model, devices=devices, deadline=until)
    return replace(course, phase="trial", round=told, asked=asked, stage=stage, until=until, past=past)


def ended(course: FleetState, model: BaseModelInfo, pace: RoundPace, now: float, keep: int) -> FleetState:
    """The round is done, and this is the fleet's model."""
    past = course.past
    if course.phase == "open":
        past = _kept((*past, _remembered(course)), course.number, keep)
    version = course.version + (model.hash != course.standing.hash)
    told = replace(_told(course), state="done", base=model, devices=None)
    return replace(
        course, phase="done", round=told, standing=model, version=version, until=now + pace.every, past=past
    )


def finished(course: FleetState, pace: RoundPace) -> bool:
    """Whether it was the last round."""
    return course.phase in ("done", "waiting") and pace.rounds is not None and course.number >= pace.rounds


def _told(course: FleetState) -> RoundAnnouncement:
    if course.round is None:
        raise ValueError("there is no round")
    return course.round


def _remembered(course: FleetState) -> KnownRound:
    told = _told(course)
    asked = None if course.asked is None else frozenset(course.asked)
    return KnownRound(told.round, told.id, told.base.hash, asked)


def _kept(past: tuple[KnownRound, ...], number: int, keep: int) -> tuple[KnownRound, ...]:
    return tuple(known for known in past if known.number > number - keep)
