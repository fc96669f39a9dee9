"""What statistics under masks have added up to over rounds, and which round's of each device are in it.

Nobody knows a device's part of it but the device. So one that was counted before sends how its sums differ
from those, which it keeps for a while.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.domain.training.message import Message
from edged.errors import CorruptError, TrainingError
from edged.logs import get_logger
from edged.mqtt.weight_encoding import MAX_BYTES, compress, decompress
from edged.storage.files import atomic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.federated.messages import RoundAnnouncement
    from edged.fleet.coordinator.journal import CoordinatorJournal
    from edged.fleet.rules.statistics import SolvedHead

    Doubles = NDArray[np.float64]

FILE, SUM, ABOUT = "masked-sum.safetensors.zst", "sum", "about"

log = get_logger("edged.fleet")


@dataclass(frozen=True)
class SumOrigin(Message):
    """What a sum is of: the id of the newest round in it, and for each device that of its round.

    `body` names what must be the same for sums to add up.
    """

    id: str
    body: str
    members: Mapping[str, str]


class MaskedSum:
    """The sum of one coordinator, in its directory; None of it is kept where `head` is None."""

    def __init__(self, journal: CoordinatorJournal, head: SolvedHead | None) -> None:
        self._journal, self._head = journal, head
        self._path = journal.path / FILE

    def carried(
        self, announced: RoundAnnouncement, kept: Mapping[str, Collection[str]], excluded: Collection[str]
    ) -> SumOrigin | None:
        """The sum on which a round goes on; None where it begins anew.

        `kept` are the devices of the round, and of which rounds each still has its sums. A sum in which an
        excluded device is cannot be used, nor one of which a device cannot take its part away.
        """
        found = None if announced.config.statistics is None else self._read()[0]
        if found is None or found.body != self._body(announced) or found.members.keys() & set(excluded):
            return None
        lost = [name for name in kept if name in found.members and found.members[name] not in kept[name]]
        if lost:
            log.warning(
                "masked_sum_begun_anew", round=announced.round, devices=lost[:20], reason="sums not kept"
            )
        return None if lost else found

    def add(self, announced: RoundAnnouncement, on: str, names: Collection[str], sums: Doubles) -> Doubles:
        """The sum with what a round adds, durably; `on` is the id of the sum on which it goes on, or empty.

        The same round is added once. Raises TrainingError when that sum is there no more.
        """
        about, before = self._read()
        if about is not None and before is not None and about.id == announced.id:
            return before
        members: dict[str, str] = {}
        if on:
            if about is None or before is None or about.id != on:
                raise TrainingError(
                    "the sum of earlier rounds is lost: the next round starts again", where=FILE
                )
            sums, members = before + sums, dict(about.members)
        origin = SumOrigin(
            announced.id, self._body(announced), {**members, **dict.fromkeys(names, announced.id)}
        )
        packed = compress({SUM: sums.astype("<f8")}, {ABOUT: json.dumps(origin.to_json())})
        atomic.publish_file(self._path, packed)
        return sums

    def _body(self, announced: RoundAnnouncement) -> str:
        if self._head is None or announced.config.masks is None:
            return ""
        body = self._head.body(self._journal.weights(announced.base.hash))
        return f"{body} {announced.config.masks.max_samples}"

    def _read(self) -> tuple[SumOrigin | None, Doubles | None]:
        if not self._path.exists():
            return None, None
        try:
            with atomic.disk_errors("reading", self._path):
                arrays, about = decompress(self._path.read_bytes(), MAX_BYTES)
            return SumOrigin.from_json(json.loads(about[ABOUT])), arrays[SUM]
        except (CorruptError, KeyError, ValueError) as problem:
            log.warning("masked_sum_unreadable", problem=str(problem), remedy="the next round starts again")
            return None, None
