"""The masks of the round that is open: stored durably, led from step to step, and sent to devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edged.domain.federated.mask_messages import ROSTER, SHARES, STEPS, UNMASK
from edged.domain.federated.masking import FEWEST
from edged.errors import CorruptError, RejectedUpdateError, TrainingError
from edged.fleet.config import CoordinatorConfig
from edged.fleet.coordinator.channel import Announcer
from edged.fleet.coordinator.journal import CoordinatorJournal
from edged.fleet.coordinator.updates import StoredUpdate
from edged.fleet.rules.masks import Masks
from edged.fleet.rules.rounds import FleetState
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.domain.federated.messages import UpdateHeader
    from edged.storage.files.append_log import AppendLog

AT_ONCE = 64  # messages to devices between two looks at what has come
AGAIN_SECONDS = 10.0  # until a device that has not answered is asked again
SHARED, CLOSED = "shared", "closed"

log = get_logger("edged.fleet")


class Due(NamedTuple):
    """What a round under masks needs: nothing yet, its model, or to be given up for a reason."""

    what: Literal["wait", "close", "abandon"]
    reason: str = ""


WAIT = Due("wait")


class MaskKeeper:
    """Leads the masks of a round from step to step; every step is durable before devices hear of it."""

    def __init__(
        self,
        config: CoordinatorConfig,
        journal: CoordinatorJournal,
        announcer: Announcer,
        course: FleetState,
    ) -> None:
        self._config, self._journal, self._announcer = config, journal, announcer
        self._log: AppendLog | None = None
        self._masks: Masks | None = None
        self._outgoing: deque[tuple[str, str]] = deque()
        self._asked = 0.0
        self.turn(course)

    def turn(self, course: FleetState) -> None:
        """The fleet has gone on: open what is kept of the masks of its round, and close the last."""
        self._course, announced = course, course.round
        masked = course.phase == "open" and announced is not None and announced.config.masks is not None
        token = announced.id if announced is not None and masked else None
        if token == (None if self._masks is None else self._masks.token):
            return
        self.close()
        if announced is not None and token is not None:
            self._log = self._journal.masks(announced.round)
            self._masks = Masks(token, announced.opened)
            for record in self._log.records:
                self._apply(self._masks, record.head, self._log.read(record))
            self._resend_requests(self._masks)

    def _resend_requests(self, masks: Masks) -> None:
        """Queue all that devices wait for: an earlier process might not have sent it. They accept it once."""
        if masks.stage == "sharing":
            waiting, step = masks.joined.keys() - masks.shares.keys(), ROSTER
        elif masks.stage == "collecting":
            waiting, step = set(masks.sharers or ()), SHARES
        else:
            waiting, step = set(masks.survivors or ()) - masks.answers.keys(), UNMASK
        self._outgoing.extend((name, step) for name in sorted(waiting))

    def close(self) -> None:
        """Close the file of masks without deleting it."""
        if self._log is not None:
            self._log.close()
        self._log, self._masks = None, None
        self._outgoing.clear()

    @staticmethod
    def _apply(masks: Masks, head: Mapping[str, Any], payload: bytes) -> None:
        what = head["what"]
        if head.get("id") != masks.token:
            return  # of another round with the same number
        if what in STEPS:
            masks.receive(head["device"], what, payload)
            return
        masks.since = head["at"]
        if what == ROSTER:
            masks.make_roster()
        elif what == SHARED:
            masks.choose_sharers()
        else:
            masks.close(head["names"])

    # ---- what comes ------------------------------------------------------------------------

    def receive(self, device: str, number: int | None, part: int | None, payload: bytes) -> None:
        """Receive a message of a device on masks; RejectedUpdateError when it is out of place."""
        masks, announced = self._masks, self._course.round
        if masks is None or announced is None or number != announced.round:
            raise RejectedUpdateError("round", f"no masks are made in round {number}")
        if not announced.names(device):
            raise RejectedUpdateError("not_chosen", f"{device} was not chosen for round {number}")
        step = STEPS[part or 0]
        news, again = masks.receive(device, step, payload)
        if news:
            self._append({"what": step, "device": device}, payload)
        if again is not None and (device, again) not in self._outgoing:
            self._outgoing.append((device, again))

    def check(self, update: UpdateHeader) -> None:
        """Refuse an update of a device that has shared no keys, or that comes when the sum is closed."""
        masks = self._masks
        if masks is None or update.id != masks.token:
            raise RejectedUpdateError("stale", "under masks an update counts in its own round alone")
        if masks.sharers is None or update.device not in masks.sharers:
            raise RejectedUpdateError("masks", f"{update.device} has shared no keys")
        if masks.survivors is not None:
            raise RejectedUpdateError("late", "the sum is closed")

    def _append(self, head: Mapping[str, Any], payload: bytes = b"") -> None:
        if self._log is not None and self._masks is not None:
            self._log.append({**head, "id": self._masks.token}, payload)

    def commit(self) -> None:
        """Make durable what has come."""
        if self._log is not None:
            self._log.sync()

    # ---- what is due -----------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether a round under masks is open."""
        return self._masks is not None

    @property
    def progress(self) -> str | None:
        """What devices are waited for, in words; None without a round under masks."""
        masks = self._masks
        if masks is None:
            return None
        counts = {
            "joining": f"{len(masks.joined)} have joined",
            "sharing": f"{len(masks.shares)} of {len(masks.joined)} have shared keys",
            "collecting": f"{len(masks.sharers or ())} have shared keys",
            "unmasking": f"{len(masks.answers)} of {len(masks.survivors or ())} have answered",
        }
        return f"{masks.stage}: {counts[masks.stage]}"

    def due(
        self, there: Collection[str], excluded: Collection[str], now: float, *, skip: bool = False
    ) -> Due:
        """Go on to the next step if it is time; what the round needs otherwise.

        `there` are the devices whose updates have come. With `skip` nothing more is waited for.
        """
        masks = self._masks
        if masks is None:
            return WAIT
        over = now >= self._course.until or skip
        waited = skip or now - masks.since >= self._config.masks.wait
        if masks.stage == "joining":
            return self._check_joining(masks, excluded, now, waited=waited or over, over=over)
        if masks.stage == "sharing":
            return self._check_sharing(masks, now, waited=waited)
        if masks.stage == "collecting":
            return self._check_collecting(masks, set(there).difference(excluded), now, over=over)
        return self._check_unmasking(masks, now, waited=waited)

    @property
    def _least(self) -> int:
        return max(FEWEST, self._config.round.least)

    def _check_joining(
        self, masks: Masks, excluded: Collection[str], now: float, *, waited: bool, over: bool
    ) -> Due:
        announced, count = self._course.round, len(masks.joined)
        devices = None if announced is None else announced.devices
        asked = None if devices is None else set(devices).difference(excluded)
        whole = count >= self._config.round.devices if asked is None else asked <= masks.joined.keys()
        if count >= self._least and (whole or waited):
            masks.make_roster()
            self._step(masks, {"what": ROSTER}, now)
            self._outgoing.extend((name, ROSTER) for name in sorted(masks.joined))
            return WAIT
        return Due("abandon", f"too few have joined: {count} of {self._least}") if over else WAIT

    def _check_sharing(self, masks: Masks, now: float, *, waited: bool) -> Due:
        if len(masks.shares) < len(masks.joined) and not waited:
            return WAIT
        masks.choose_sharers()
        count = len(masks.sharers or ())
        if count < self._least:
            return Due("abandon", f"too few have shared keys: {count} of {self._least}")
        self._step(masks, {"what": SHARED}, now)
        self._outgoing.extend((name, SHARES) for name in sorted(masks.sharers or ()))
        return WAIT

    def _check_collecting(self, masks: Masks, there: set[str], now: float, *, over: bool) -> Due:
        wanted = min(self._config.round.devices, len(masks.sharers or ()))
        if len(there) < self._least or not (over or len(there) >= wanted):
            return Due("abandon", f"too few updates: {len(there)} of {self._least}") if over else WAIT
        if masks.hopeless_with(there):
            problem = "too many that have shared keys have fallen silent"
            return Due("abandon", f"{problem}: the masks cannot be taken off") if over else WAIT
        masks.close(there)
        self._step(masks, {"what": CLOSED, "names": sorted(there)}, now)
        self._outgoing.extend((name, UNMASK) for name in sorted(there))
        self._asked = now
        return WAIT

    def _check_unmasking(self, masks: Masks, now: float, *, waited: bool) -> Due:
        if masks.complete:
            return Due("close")
        if waited:
            return Due("abandon", f"too few answers to take off the masks: {len(masks.answers)}")
        self._ask_again(masks, now)
        return WAIT

    def _step(self, masks: Masks, head: Mapping[str, Any], now: float) -> None:
        masks.since = now
        log.info("masks_step", round=self._course.number, stage=masks.stage, devices=len(masks.joined))
        self._append({**head, "at": now})
        self.commit()

    def _ask_again(self, masks: Masks, now: float) -> None:
        if now - self._asked >= AGAIN_SECONDS and not self._outgoing:
            self._asked = now
            silent = (masks.survivors or frozenset()) - masks.answers.keys()
            self._outgoing.extend((name, UNMASK) for name in sorted(silent))

    # ---- what goes out ---------------------------------------------------------------------

    def send(self) -> bool:
        """Tell some devices what they wait for; whether there are more."""
        masks = self._masks
        for _ in range(min(AT_ONCE, len(self._outgoing))):
            device, step = self._outgoing[0]
            if masks is None or not self._announcer.peers(
                self._course.number, device, step, masks.message_for(device, step)
            ):
                return False
            self._outgoing.popleft()
        return bool(self._outgoing)

    def total(self, records: Iterable[tuple[StoredUpdate, bytes]], size: int) -> NDArray[np.float64]:
        """The sum `(size,)` of the vectors in `records`, which are all of the devices that `survivors` names.

        Raises TrainingError when the answers do not fit together.
        """
        masks = self._masks
        if masks is None:
            raise ValueError("no round under masks is open")
        try:
            return masks.unmasked((np.frombuffer(data, "<u8") for _, data in records), size)
        except (CorruptError, ValueError) as problem:  # ValueError: a device has sent no key
            what = problem.what if isinstance(problem, CorruptError) else str(problem)
            raise TrainingError(f"the masks cannot be taken off: {what}", where="masks") from problem

    @property
    def survivors(self) -> frozenset[str]:
        """The devices whose vectors are in the sum."""
        return frozenset() if self._masks is None else self._masks.survivors or frozenset()
