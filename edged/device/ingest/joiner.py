"""From what messages say to readings: values of several are joined, and get the labels that hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edged.clock import Clock
from edged.config import StreamConfig
from edged.device.ingest.notices import IngestNotices
from edged.domain.commits.commit_group import CommitGroup, JoinChanges
from edged.domain.labels.held_labels import HeldLabels
from edged.domain.stream.admission import AdmissionControl
from edged.domain.stream.joining import Joining
from edged.domain.stream.sample import HoldReading, LabelReading, Reading, Seen
from edged.storage.samples.log import SampleLog

LOOK_SECONDS = 5.0  # between two looks for sensors that stay away


class Joiner:
    """Makes readings of what a message says, in order of arrival; all methods on the ingest thread.

    `stream` says how; `admission` judges event times; `clock` tells those of messages that carry none;
    `notices` reports sensors that stay away.
    """

    def __init__(
        self, stream: StreamConfig, admission: AdmissionControl, clock: Clock, notices: IngestNotices
    ) -> None:
        self.joining: Joining | None = None
        if stream.joined:
            from edged.domain.stream.joining import Joining

            self.joining = Joining(stream.join_rules())
        self.held = HeldLabels()
        self._names = [feature.name for feature in stream.measured]
        self._admission = admission
        self._clock = clock
        self._notices = notices
        self._looked = 0.0
        self._restored = False

    @property
    def needed(self) -> bool:
        """Whether messages have to pass here at all; else they are readings without a label that holds."""
        return self.joining is not None or bool(self.held)

    @property
    def awaited(self) -> list[str]:
        """Features for want of which there is no sample yet."""
        return [] if self.joining is None else [self._names[at] for at in sorted(self.joining.awaiting)]

    @property
    def restored(self) -> bool:
        """Whether what is stored is here, the labels that hold among it."""
        return self._restored

    @property
    def problem(self) -> str | None:
        """Why there is no sample yet; None if there are samples, or nothing has come."""
        names = self.awaited
        return f"no samples yet: no value of {', '.join(names)} has come" if names else None

    def restore(self, store: SampleLog) -> None:
        """Go on from what is stored, at the start and after `forget`."""
        if not self._restored:
            self._restored = True
            self.held.restore(store.held_labels())
            if self.joining is not None:
                self.joining.restore(store.joined_values(), self._clock.monotonic())

    def forget(self) -> None:
        """What is here is not what is stored: restore it before the next message."""
        self._restored = False

    def join(self, found: Sequence[Seen], received: float, group: CommitGroup) -> list[Reading]:
        """The readings that a message makes, which arrived at `received` (monotonic seconds).

        Labels for samples that are there already go to `group`.
        """
        monotonic, now = self._clock.monotonic(), self._clock.now()
        arrived = now - max(0.0, monotonic - received)
        made: list[Reading] = []
        for one in found:
            if isinstance(one, Reading):
                made.append(self.held.labelled(one, arrived if one.ts is None else one.ts))
                continue
            ts = arrived if one.ts is None else self._admission.event_time(one.ts, now)
            if isinstance(one, HoldReading):
                self.held.hold(one, ts)
            elif isinstance(one, LabelReading):
                group.labels.append(one if one.id is not None else replace(one, ts=ts))
            elif self.joining is not None:
                made += self._labelled(self.joining.accept(one, ts, monotonic))
        return made

    def tick(self) -> list[Reading]:
        """The samples by the clock that are due now."""
        if self.joining is None:
            return []
        monotonic = self._clock.monotonic()
        if monotonic - self._looked > LOOK_SECONDS:
            self._looked = monotonic
            self.joining.overdue(monotonic)
            for absence in self.joining.absences():
                self._notices.away(absence, self._names)
        return self._labelled(self.joining.tick(monotonic))

    def due_in(self) -> float:
        """Seconds until `tick` has something to do; infinite when it has nothing."""
        if self.joining is None:
            return float("inf")
        monotonic = self._clock.monotonic()
        return self.joining.next_tick(monotonic) - monotonic

    def changes(self) -> JoinChanges | None:
        """What has changed since the last call; None for nothing."""
        states = {} if self.joining is None else self.joining.changes().states
        held, said = self.held.changes(), self.held.said()
        return JoinChanges(states, held, self._clock.now(), said) if states or held else None

    def _labelled(self, readings: list[Reading]) -> list[Reading]:
        return [self.held.labelled(one, one.ts or 0.0) for one in readings] if self.held else readings
