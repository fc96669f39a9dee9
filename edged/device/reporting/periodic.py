"""How things stand, told to the broker, to systemd, and to `edged status`, which reads it from disk."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.device.events import Listener
from edged.device.startup.recovery import DATABASES
from edged.errors import CorruptError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edged.clock import SystemClock
    from edged.device.events import Events
    from edged.device.outbound.reporter import Reporter
    from edged.device.reporting.status import StatusCollector
    from edged.host.scheduler import Scheduler
    from edged.host.systemd import Notifier
    from edged.storage.models.registry import Registry
    from edged.storage.samples.log import SampleLog
    from edged.storage.sequence import Sequence

log = get_logger("edged.daemon")


class PeriodicReporter(Listener):
    """Publishes states and metrics, and keeps the status on disk. `settings` gives the state `config`.

    `give_up` is called, with the name of the file, when a database turns out to be damaged.
    """

    def __init__(
        self,
        *,
        selfreport: StatusCollector,
        reporter: Reporter,
        registry: Registry,
        samples: SampleLog,
        sequence: Sequence,
        notifier: Notifier,
        clock: SystemClock,
        settings: Callable[[], dict[str, Any]],
        give_up: Callable[[str], None],
        scheduler: Scheduler,
        events: Events,
    ) -> None:
        self._settings = settings
        self._selfreport = selfreport
        self._reporter = reporter
        self._registry = registry
        self._samples = samples
        self._sequence = sequence
        self._notifier = notifier
        self._clock = clock
        self._give_up = give_up
        self._scheduler = scheduler
        self._events = events
        self._problem: str | None = None

    def periodically(self) -> None:
        """States and metrics."""
        # States first: the metrics of this moment would count as waiting, and change them each time.
        self.now()
        with self._damage_noticed():
            self._events.metrics(self._selfreport.metrics())
        self._sequence.keep()

    def now(self) -> None:
        """States only."""
        with self._damage_noticed():
            self.states_changed()
            self.keep_status(self._selfreport.status())
        if self._samples.damage is not None:
            self._found_damaged(self._samples.damage)
        serving = f"serving model {self._selfreport.version}"
        problem = self._selfreport.problem
        self._notifier.status(f"{serving}; {problem}" if problem else serving)

    def connection_changed(self) -> None:
        """Publish states soon."""
        self._scheduler.soon(self.now)

    def problem_changed(self) -> None:
        """Publish states soon."""
        self._scheduler.soon(self.now)

    def states_changed(self) -> None:
        """Publish the retained state topics that have changed."""
        self._selfreport.states(self._reporter)
        self._reporter.state("config", self._settings())

    def keep_status(self, status: dict[str, Any]) -> None:
        """For `edged status`; on a full disk it stays the older one, which is noticed by its age."""
        try:
            self._registry.set_value("status", status | {"told_at": self._clock.monotonic()})
        except CorruptError as problem:
            self._found_damaged(problem)
        except StorageError as problem:
            level = log.debug if self._problem == problem.line() else log.warning
            self._problem = problem.line()
            level("status_not_kept", problem=problem.line())
        else:
            self._problem = None

    @contextmanager
    def _damage_noticed(self) -> Iterator[None]:
        try:
            yield
        except CorruptError as problem:
            self._found_damaged(problem)

    def _found_damaged(self, problem: CorruptError) -> None:
        """A database cannot be repaired while it is open: the next start sets it aside."""
        log.error("damaged", problem=problem.line())
        name = Path(problem.where).name
        if name in DATABASES:
            self._give_up(name)
