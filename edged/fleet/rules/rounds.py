"""The course of a fleet's rounds: what comes next, and when. No clock and no broker in here.

    waiting -> open -> trial -> (approval) -> trial ... -> done -> waiting

A round is opened when enough devices are ready, and closed when as many updates have come as are wanted, or
at its deadline if they are a quorum. Without a quorum it is extended by its deadline, with more devices, up
to `EXTENSIONS` times, and then given up. Its model is tried by a share of the devices after the other, until
it is the fleet's model, or the one before stays that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edged.domain.federated.messages import BaseModelInfo, RoundAnnouncement
from edged.domain.training.message import Message
from edged.fleet.config import RoundSection

EXTENSIONS = 2

Phase = Literal["waiting", "open", "trial", "approval", "done"]


@dataclass(frozen=True)
class FleetState(Message):
    """State of a fleet. All of it survives a restart."""

    standing: BaseModelInfo  # the fleet's model
    bundle: str = ""  # fingerprint of the bundle that devices need
    number: int = 0  # of the round that is under way or was the last; 0 before the first
    version: int = 0  # how many models have become the fleet's
    phase: Phase = "waiting"
    round: RoundAnnouncement | None = None  # as it was last announced; None before the first
    # The devices that train in it; None for all. Once it is closed also those that did.
    asked: tuple[str, ...] | None = None
    stage: int = 0  # which share of the devices tries the model
    extensions: int = 0  # how often the open round has been extended
    order: str = ""  # token of the operator's last order that was carried out
    until: float = 0.0  # when the present phase ends at the latest, seconds since the epoch
    approved_by: str = ""  # the user who approved the latest stage


def opened(course: FleetState, announced: RoundAnnouncement, pace: RoundSection) -> FleetState:
    """Return the state after the next round was opened."""
    until = announced.opened + pace.deadline
    return replace(
        course, phase="open", number=announced.round, round=announced, asked=announced.devices, stage=0,
        until=until, extensions=0, approved_by="",
    )  # fmt: skip


def due(
    course: FleetState, accepted: int, pace: RoundSection, now: float
) -> Literal["close", "extend", "abandon"] | None:
    """Return what an open round needs: to be closed, more time and devices, or to be abandoned."""
    asked = pace.devices if course.asked is None else min(pace.devices, len(course.asked))
    if accepted >= asked or (now >= course.until and accepted >= pace.least):
        return "close"
    if now < course.until:
        return None
    return "extend" if course.extensions < EXTENSIONS else "abandon"


def extended(course: FleetState, more: tuple[str, ...], pace: RoundSection, now: float) -> FleetState:
    """Extend the round by its deadline, with more devices."""
    announced = _announcement(course)
    asked = None if course.asked is None else tuple(sorted({*course.asked, *more}))
    until = now + pace.deadline
    announced = replace(announced, devices=asked, deadline=until)
    return replace(course, asked=asked, until=until, round=announced, extensions=course.extensions + 1)


def trial(
    course: FleetState,
    model: BaseModelInfo,
    devices: tuple[str, ...] | None,
    stage: int,
    until: float,
    asked: tuple[str, ...] | None,
) -> FleetState:
    """The round is closed, or the share before has agreed: `devices` try its model now, of all `asked`."""
    announced = replace(_announcement(course), state="closed", base=model, devices=devices, deadline=until)
    return replace(course, phase="trial", round=announced, asked=asked, stage=stage, until=until)


def awaiting_approval(course: FleetState, now: float) -> FleetState:
    """The stage has agreed, and an operator decides whether the next one begins."""
    return replace(course, phase="approval", until=now)


def ended(course: FleetState, model: BaseModelInfo, pace: RoundSection, now: float) -> FleetState:
    """The round is done, and this is the fleet's model."""
    version = course.version + (model.hash != course.standing.hash)
    announced = replace(_announcement(course), state="done", base=model, devices=None)
    return replace(
        course, phase="done", round=announced, standing=model, version=version, until=now + pace.every,
        approved_by=course.approved_by if version > course.version else "",
    )  # fmt: skip


def finished(course: FleetState, pace: RoundSection) -> bool:
    """Return whether the last round has ended."""
    return course.phase in ("done", "waiting") and pace.rounds is not None and course.number >= pace.rounds


def _announcement(course: FleetState) -> RoundAnnouncement:
    if course.round is None:
        raise ValueError("there is no round")
    return course.round
