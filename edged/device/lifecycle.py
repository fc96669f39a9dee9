"""The life of a running device: start, reload, stop."""

from __future__ import annotations

import gc
from pathlib import Path

from edged import __version__, logs
from edged.config import loader
from edged.device.assembly import Assembly
from edged.device.learning.conditions import Pacer
from edged.domain.events import DaemonStarted
from edged.errors import ConfigError, StorageError
from edged.mqtt.topics import widest

log = logs.get_logger("edged.device")

AUDIT_SECONDS = 1.0  # that entries wait for the audit log
WATCH_SECONDS = 5.0  # between two looks at the board and at the clock


class Device(Assembly):
    """All parts of one running device, put together, with a beginning and an end.

    `endings` receives the name of the file when a database turns out to be damaged.
    """

    def start(self) -> None:
        """Connect and begin to work."""
        with self.recovery.opening("the threads"):
            self._start()

    def _start(self) -> None:
        self.pipeline.serving.start()
        self.pipeline.ingestor.start()
        self.audit.record_configuration(self.config, self.clock.now())
        self.dispatcher.resume()
        self.inbox.start(self.dispatcher)
        self.outbound.start()
        self._plan()
        stream = self.config.stream
        # A message comes once for each filter that covers it: subscribe to none that another covers.
        filters = widest(stream.all_topics)
        self.session.subscribe(filters, 1, self.pipeline.ingestor.receive)
        requests = (self.topics.requests, self.topics.slashed_requests)
        self.session.subscribe(requests, 1, self.inbox.receive, as_published=True)
        self.pauses.start()
        self.pipeline.worker.start()  # now: what is paused does not train, and a resumed run has its command
        for extension in self.extensions:
            extension.start()
        self.recovery.serving()  # before anybody hears of it
        self.session.start()
        model = self.pipeline.predictor.champion.version
        recovery = self.recovery
        self.events.event(DaemonStarted(self.boot, __version__, model, recovery.reason, recovery.repaired))
        gc.collect()
        gc.freeze()
        self.notifier.ready()
        self.events.ready()

    def _plan(self) -> None:
        training = self.config.training
        if training.cron is not None:
            self.timetable.cron(training.cron, self._scheduled)
        elif training.every:
            self.timetable.every(training.every, self._scheduled)
        self.timetable.every(self.config.report.every, self.periodic_reporter.periodically)
        if self.config.weights.every:
            self.timetable.every(self.config.weights.every, self.outbound.weights_if_new)
        self.timetable.every(AUDIT_SECONDS, self.audit.drain)
        self.timetable.every(WATCH_SECONDS, self.board_watch.look)
        self.timetable.every(WATCH_SECONDS, self.clock_watch.look)
        pacer = Pacer(
            training.serving_p99,
            self.pipeline.serving.latencies,
            self.pipeline.scheduler.client,
            self.board_watch if training.wait_throttled else None,
        )
        self.timetable.every(1.0, pacer.look)
        self.timetable.soon(self.periodic_reporter.now)
        self.timetable.start()

    def _scheduled(self) -> None:
        self.pipeline.scheduler.triggers.scheduled = True
        self.pipeline.worker.wake()

    def reload(self, path: Path) -> None:
        """Read the configuration again: the log level is applied, other changes are named.

        A configuration that cannot be used changes nothing.
        """
        self.notifier.reloading()
        try:
            config = loader.load(path)
        except ConfigError as problem:
            log.error("reload_refused", problem=problem.line())
        else:
            logs.configure(config.log.level, config.log.format)
            changed = [
                name
                for name in type(config).model_fields
                if name not in ("log", "model") and getattr(config, name) != getattr(self.config, name)
            ]
            log.info("reloaded", level=config.log.level, needs_restart=changed)
        self.notifier.ready()

    def stop(self, damaged: str | None = None) -> None:
        """Orderly: no new messages, what is here committed and answered, trainer ended, goodbye said.

        `damaged` is the database because of which it ends, if it is one.
        """
        self.notifier.stopping()
        self.pipeline.worker.stop()
        self.timetable.stop(1.0)
        self.pipeline.scheduler.client.cancel()
        for extension in reversed(self.extensions):
            extension.stop()
        self.pipeline.ingestor.stop()
        self.pipeline.serving.stop()
        self.inbox.stop()
        self.dispatcher.stop()
        self.pauses.stop()
        self.pipeline.worker.join(8.0)
        self.pipeline.scheduler.client.close()
        self._keep_learning()
        if self.pipeline.keys is not None:
            self.pipeline.keys.close()
        self.reporter.farewell()
        if damaged is None:
            self.periodic_reporter.store_status({**self.status.status(), "state": "stopped"})
        self.session.stop()
        self.outbound.stop()
        self._sequence.close()
        self.audit.drain()
        self._state.close("damaged" if damaged else "clean_stop", damaged)

    def _keep_learning(self) -> None:
        """For the next start; on a full disk it goes on from an older state."""
        try:
            self.pipeline.worker.store_state()
        except StorageError as problem:
            log.warning("state_not_kept", problem=problem.line())
