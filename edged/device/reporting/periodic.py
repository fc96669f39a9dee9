"""Periodic reports of the device's state: to the broker, to systemd, and on disk for `edged status`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from edged.device.events import Events, Listener
from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.reporter import Reporter
from edged.device.reporting.status import StatusCollector
from edged.device.reports import StreamStatus
from edged.device.settings import Settings
from edged.device.startup.recovery import DATABASES
from edged.domain.events import Event, TrainingFinished, TrainingStarted
from edged.errors import CorruptError, StorageError
from edged.host.scheduler import Scheduler, Timetable
from edged.host.systemd import Notifier
from edged.logs import get_logger
from edged.storage.journal.journal import Sequence
from edged.storage.journal.last_run import write_status

log = get_logger("edged.daemon")


class Endings(Protocol):
    """Receives why something has to end."""

    def put(self, what: str, /) -> None:
        """The file name of a database that is damaged."""


class PeriodicReporter(Listener):
    """Publishes states and metrics, and stores the status of `pipeline` for `edged status`.

    `settings` has the retained state `config`. `sequence`: numbers of messages, stored with each report.
    `notifier` shows the state in `systemctl status`; None where that is of several streams. `endings`
    receives the file name of a database that is damaged: the stream then stops. `timetable`: its thread
    publishes states after a change. `events` receives the metrics.
    """

    def __init__(
        self,
        pipeline: LivePipeline,
        *,
        status: StatusCollector,
        settings: Settings,
        reporter: Reporter,
        sequence: Sequence,
        notifier: Notifier | None,
        endings: Endings,
        timetable: Scheduler | Timetable,
        events: Events,
    ) -> None:
        self._pipeline = pipeline
        self._status = status
        self._settings = settings
        self._reporter = reporter
        self._sequence = sequence
        self._notifier = notifier
        self._endings = endings
        self._timetable = timetable
        self._events = events
        self._problem: str | None = None

    def periodically(self) -> None:
        """Publish states and metrics, and store the status."""
        # States first: published metrics would wait in the outbox, and change the state `buffer` each time.
        self.now()
        with self._damage_handled():
            self._events.metrics(self._status.metrics())
        self._sequence.reserve()

    def now(self) -> None:
        """Publish states and store the status."""
        with self._damage_handled():
            self.states_changed()
            self.store_status(self._status.status())
        damage = self._pipeline.samples.damage
        if damage is not None:
            self._stop_for_repair(damage)
        if self._notifier is None:
            return
        serving = f"serving model {self._pipeline.predictor.champion.version}"
        problem = self._status.problem
        self._notifier.status(f"{serving}; {problem}" if problem else serving)

    def connection_changed(self) -> None:
        """Publish states soon, on the timetable's thread."""
        self._timetable.soon(self.now)

    def event(self, event: Event) -> None:
        """Publish states soon when a run begins or ends."""
        if isinstance(event, TrainingStarted | TrainingFinished):
            self._timetable.soon(self.now)

    def problem_changed(self) -> None:
        """Publish states soon, on the timetable's thread."""
        self._timetable.soon(self.now)

    def states_changed(self) -> None:
        """Publish the retained state topics that have changed."""
        for name, state in vars(self._status.states()).items():
            self._reporter.state(name, state)
        self._reporter.state("config", self._settings.state())

    def store_status(self, status: StreamStatus) -> None:
        """Store the status for `edged status`; if the disk refuses it, the older status stays."""
        try:
            write_status(self._pipeline.config.storage.dir, status, self._pipeline.clock.monotonic())
        except StorageError as problem:
            level = log.debug if self._problem == problem.line() else log.warning
            self._problem = problem.line()
            level("status_not_kept", problem=problem.line())
        else:
            self._problem = None

    @contextmanager
    def _damage_handled(self) -> Iterator[None]:
        try:
            yield
        except CorruptError as problem:
            self._stop_for_repair(problem)

    def _stop_for_repair(self, problem: CorruptError) -> None:
        """Stop the daemon: the next start renames the damaged database and creates a new one."""
        log.error("damaged", problem=problem.line())
        name = Path(problem.where).name
        if name in DATABASES:
            self._endings.put(name)
