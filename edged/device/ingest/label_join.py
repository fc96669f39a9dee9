"""Labels that come by themselves find the samples that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.clock import Ages
from edged.domain.stream.sample import LabelUpdate, Rejected

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.domain.protocols import SampleStore
    from edged.domain.stream.commit_group import CommitGroup


class LabelJoin:
    """By id, or by key and time; `expiry` is how old a sample may be then, in seconds, None for any age."""

    def __init__(self, store: SampleStore, clock: Clock, expiry: float | None) -> None:
        self._store, self._clock, self._expiry = store, clock, expiry
        self._ages = Ages(clock)

    def join(self, group: CommitGroup) -> list[LabelUpdate]:
        """Commit the labels of a group; those without a sample, or too late, go to its quarantine.

        Raises StorageError when the disk refuses; nothing has changed then.
        """
        if not group.labels:
            return []
        found = self._store.find_many(group.labels)
        updates, lost = [], []
        now = self._clock.now()
        expired = self._expired([offset for offset in found if offset is not None], now)
        for label, offset in zip(group.labels, found, strict=True):
            named = f"(id {label.id!r}, key {label.key!r}, ts {label.ts!r})"
            if offset is None:
                lost.append(Rejected(now, "label", "label_unmatched", b"", f"no sample for label {named}"))
            elif offset in expired:
                lost.append(Rejected(now, "label", "label_expired", b"", f"too late for its sample {named}"))
            else:
                updates.append(LabelUpdate(offset, label.label, label.ts or now))
        self._store.commit(None, updates, lost, group.label_packets)
        group.rejected.extend(lost)
        return updates

    def _expired(self, offsets: list[int], now: float) -> set[int]:
        """Samples whose labels may come no longer."""
        if self._expiry is None:
            return set()
        arrived = self._store.arrivals(offsets)
        return {offset for offset, ts in arrived.items() if self._ages.age(ts, now) > self._expiry}
