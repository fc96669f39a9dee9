"""The life of one stream: its threads, subscriptions and regular work, from its start to its end."""

from __future__ import annotations

from dataclasses import replace

from edged import __version__, logs
from edged.device.assembly import Assembly
from edged.device.learning.conditions import Pacer
from edged.domain.events import DaemonStarted
from edged.host.systemd import LoopWatch
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.topics import widest

log = logs.get_logger("edged.device")

AUDIT_SECONDS = 1.0  # that entries wait for the audit log
LOOK_SECONDS = 1.0
LEARN_SECONDS = 5.0  # between two looks whether one of several streams has something to learn
EVICT_SECONDS = 60.0  # between two turns of ingest where samples get too old


class RunningStream(Assembly):
    """All parts of one stream, put together, with a beginning and an end."""

    _seen = (0, 0)  # newest sample and label when it was last looked whether there is something to learn

    def start(self) -> None:
        """Begin to work; messages come as soon as the session is connected."""
        with self.recovery.opening("the threads"):
            self._start()

    def _start(self) -> None:
        several = bool(self.config.name)
        threads = self.parts.threads if several else None
        background = threads.background if threads else None
        self.pipeline.start(threads)
        self.audit.record_configuration(self.config, self.clock.now())
        self.dispatcher.resume()
        self.inbox.start(self.dispatcher)
        self.outbound.forwarder.start(background)
        self._plan()
        # A message comes once for each filter that covers it: subscribe to none that another covers.
        self.filters = widest(self.config.stream.all_topics)
        sink = self.receive if several else self.pipeline.ingestor.receive
        self.session.subscribe(self.filters, 1, sink, shared=several)
        requests = (self.topics.requests, self.topics.slashed_requests)
        self.session.subscribe(requests, 1, self.inbox.receive, as_published=True)
        self.pauses.start()
        self.pipeline.worker.start(
            background
        )  # now: what is paused does not train, and a resumed run has its command
        for extension in self.extensions:
            extension.start()
        self.recovery.serving()  # before anybody hears of it

    def receive(self, delivery: ReceivedMessage) -> None:
        """Take a message of this stream of several; on the network thread."""
        if self.stream_session is not None:
            self.stream_session.count(delivery)
        self.pipeline.ingestor.receive(delivery)

    def _plan(self) -> None:
        training = self.config.training
        if isinstance(training.every, str):
            self.timetable.cron(training.every, self._scheduled)
        elif training.every:
            self.timetable.every(training.every, self._scheduled)
        self.timetable.every(self.config.report.every, self.periodic_reporter.periodically)
        if self.config.weights.every:
            self.timetable.every(self.config.weights.every, self.outbound.weights_if_new)
        self.timetable.every(AUDIT_SECONDS, self.audit.drain)
        pacer = Pacer(
            training.serving_p99,
            self.pipeline.serving.latencies,
            self.pipeline.scheduler.client,
            self.parts.board_watch,
        )
        self.timetable.every(LOOK_SECONDS, pacer.look)
        if self.config.name:
            self.timetable.every(LOOK_SECONDS, self.outbound.forwarder.look)
            self.timetable.every(LOOK_SECONDS, self._wake_serving)
            self.timetable.every(LEARN_SECONDS, self._wake_learning)
            if self.config.storage.max_age is not None:
                self.timetable.every(EVICT_SECONDS, self.pipeline.ingestor.wake)
        self.timetable.soon(self.periodic_reporter.now)

    def _scheduled(self) -> None:
        self.pipeline.scheduler.triggers.scheduled = True
        self.pipeline.worker.wake()

    # Loops of several streams share threads and have no timeouts: an idle stream costs no turns.

    def _wake_serving(self) -> None:
        if self.pipeline.teacher.behind or self.pipeline.predictor.on_probation:
            self.pipeline.serving.look()

    def _wake_learning(self) -> None:
        pipeline, samples = self.pipeline, self.pipeline.samples
        before, self._seen = self._seen, (samples.next_offset(), samples.last_seq())
        if self._seen != before or pipeline.worker.waits or pipeline.rollout.problem is not None:
            pipeline.worker.look()

    def announce_start(self) -> None:
        """Tell that it serves, and let what takes long to load begin."""
        model, recovery = self.pipeline.predictor.champion.version, self.recovery
        self.events.event(DaemonStarted(self.boot, __version__, model, recovery.reason, recovery.repaired))

    def unsubscribe(self) -> None:
        """Have no messages delivered any more, while the session of the device goes on."""
        session, topics = self.session, self.topics
        session.unsubscribe(self.filters, self.receive)
        session.unsubscribe([topics.requests, topics.slashed_requests], self.inbox.receive)
        session.unsubscribe([topics.incoming_weights], self.transfers.receive)
        if self.discovery is not None:
            session.unsubscribe([self.discovery.births], self.discovery.receive)

    def withdraw_all(self) -> None:
        """Have the broker forget what it retains of this stream."""
        self.reporter.withdraw_all()
        if self.discovery is not None:
            self.discovery.withdraw_all()

    @property
    def stuck(self) -> bool:
        """Whether one of its loops has work and does not turn."""
        watch, pipeline = self.watchdog, self.pipeline
        if not isinstance(watch, LoopWatch):
            return False
        return watch.stuck("ingest", works=pipeline.ingestor.waiting > 0) or watch.stuck(
            "serve", works=pipeline.serving.waiting > 0
        )

    def begin_stop(self) -> None:
        """Start no further run, report or check."""
        self.pipeline.worker.stop()
        self.timetable.stop(1.0)
        self.pipeline.scheduler.client.cancel()

    def finish(self, damaged: str | None = None) -> None:
        """End the threads: what is here is committed and answered. `damaged`: see `Device.stop`."""
        for extension in reversed(self.extensions):
            extension.stop()
        self.pipeline.ingestor.stop()
        self.pipeline.serving.stop()
        self.inbox.stop()
        self.dispatcher.stop()
        self.pipeline.worker.join(8.0)
        self.pipeline.scheduler.client.close()
        self._keep_learning()
        self.reporter.farewell()
        if damaged is None:
            self.periodic_reporter.store_status(replace(self.status.status(), state="stopped"))

    def close(self, damaged: str | None = None) -> None:
        """Close what is open; nothing can be published any more."""
        self.outbound.forwarder.stop()
        self._sequence.close()
        self.audit.drain()
        if self.stream_session is not None:
            self.stream_session.leave()
        self._state.close("damaged" if damaged else "clean_stop", damaged)

    def _keep_learning(self) -> None:
        """For the next start; on a full disk it goes on from an older state."""
        with logs.disk_may_refuse(log, "state_not_kept"):
            self.pipeline.worker.store_state()
