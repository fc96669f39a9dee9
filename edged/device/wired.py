"""The parts of one running device, wired together: the one place that knows all of the serving side.

Threads: network (paho), ingest, serve, learn, control, timetable, where configured web, and the main thread
that waits.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

from edged import __version__, configfile, logs, remembered
from edged.arrivals import Arrivals
from edged.authorising import authorisation
from edged.clock import SystemClock
from edged.conditions import BoardWatch, ClockWatch, ConditionsReader, Pacer
from edged.discovering import Discovery
from edged.domain.guards import Wear
from edged.domain.intake import Intake
from edged.domain.label_requests import LabelRequests
from edged.domain.overlap import judged_on
from edged.domain.windowing import Windowing
from edged.engines.inference import InferenceModel
from edged.errors import ConfigError, StorageError
from edged.host.board import BoardReader
from edged.host.notify import Notifier, Watchdog
from edged.host.processors import fitting
from edged.host.timetable import Timetable
from edged.host.vitals import VitalsReader
from edged.learning import CANCELLED, Learning
from edged.loop.ask import Asking
from edged.loop.control import Control
from edged.loop.ingest import Ingest
from edged.loop.installing import Installing
from edged.loop.learn import SETBACKS, Learner
from edged.loop.promote import Promoter
from edged.loop.recall import Recall
from edged.loop.report import Reporter, Throttle, will_payload
from edged.loop.serve import Server, ServingLoop
from edged.loop.succession import Succession
from edged.loop.updates import Updates
from edged.modelfiles import INT8
from edged.mqtt.codecs import label_codec, sample_codec
from edged.mqtt.connection import in_flight
from edged.mqtt.session import Session
from edged.mqtt.topics import Topics, matches, widest
from edged.opening import open_state
from edged.publishing import Publishing
from edged.selfreport import SelfReport
from edged.steering import Labelling, Parts, Steering
from edged.storage.sequence import Sequence
from edged.storage.signatures import open_bundle
from edged.telling import Telling

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as SequenceOf
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.drift import DriftSignal
    from edged.domain.predictions import Predictions
    from edged.domain.protocols import Served
    from edged.domain.sample import Batch, LabelUpdate, Rejected
    from edged.edgenode import EdgeNode
    from edged.membership import Membership
    from edged.mqtt.delivery import Delivery
    from edged.storage.bundles import Bundle
    from edged.web.front import Front

log = logs.get_logger("edged.device")

WATCH_SECONDS = 5.0  # between two looks at the board and at the clock
BREATH = 0.003  # seconds left to the serving thread between two pieces of loading a model


def _breathe() -> None:
    time.sleep(BREATH)


class Device:
    """All parts of one running device, wired together.

    `give_up` is called, with the name of the file, when a database turns out to be damaged.
    """

    def __init__(
        self, config: Config, path: Path, notifier: Notifier, give_up: Callable[[str], None]
    ) -> None:
        self._path = path
        self.clock = SystemClock()
        self.notifier = notifier
        self._state = state = open_state(config, self.clock)
        self.config, self.recovery, self.boot = state.config, state.recovery, state.boot
        self.schema = self.config.stream.to_schema()
        self.registry, self.samples, self._reader = state.registry, state.samples, state.reader
        self._sequence = Sequence(self.registry)
        self._throttle = Throttle(self.clock)
        self.timetable = Timetable(self.clock)
        self.watchdog = Watchdog(notifier, ("ingest", "serve"))
        self._connect()
        self._judge_and_serve()
        self._learn()
        self._report(give_up)
        self.learner.triggers.interrupted = state.interrupted and not self.registry.get_value(CANCELLED)

    # ---- wiring ----------------------------------------------------------------------------

    def _connect(self) -> None:
        config = self.config
        self.topics = Topics(config.topic_root)
        self.session = Session(
            config.mqtt,
            client_id=config.mqtt.client_id or f"edged-{config.device.id}",
            will=(self.topics.status, will_payload(self.boot), True),
            on_online=self._online,
            on_offline=self._connection_changed,
        )
        self.installing = Installing(config, self.registry)
        self.updates = Updates(config, self._present_bundle, self.registry)
        self.publishing = Publishing(
            config,
            topics=self.topics,
            session=self.session,
            registry=self.registry,
            updates=self.updates,
            clock=self.clock,
            boot=self.boot,
            number=self._sequence,
        )
        self.reporter = Reporter(
            topics=self.topics,
            publish=self.publishing.now,
            deliver=self.publishing.deliver,
            number=self._sequence,
            clock=self.clock,
            boot=self.boot,
        )

    def _present_bundle(self) -> Bundle:
        path = self.installing.present()
        if path is None or path == self._state.bundle.path:
            return self._state.bundle
        return open_bundle(path, self.config.model.keys)

    def _judge_and_serve(self) -> None:
        config = self.config
        self.promoter = Promoter(
            config=config.gate,
            schema=self.schema,
            registry=self.registry,
            holdout=judged_on(self._reader, config.stream.window_rules),
            load_model=self._load_model,
            clock=self.clock,
            keep_models=config.storage.keep_models,
            staging=config.storage.dir / "candidates",
            int8=config.serving.quantise == INT8,
            breathe=_breathe,
            regimes=remembered.regimes(self.registry),
        )
        self.recall = Recall(self.schema, self.promoter.regimes, self._reader, enabled=config.gate.recall)
        self.promoter.bank = self.recall.bank
        self.server = Server(
            config.serving,
            config.gate,
            self.schema,
            self._first_model(),
            config.drift.rules(),
            config.anomaly.rules(),
        )
        remembered.restore_drift(self.registry, self.server.drift)
        remembered.restore_anomalies(self.registry, self.server.anomalies)
        self.recall.crowned(self.server.champion.version)
        predecessor = self.promoter.unproven(self.server.champion.version)
        if predecessor is not None:
            self.server.resume(predecessor)
        self.succession = Succession(self.promoter, self.server, self.reporter.event, self._rest)
        self.server.rescue = self.succession.rescue
        self.asking = self._asking()
        self.serving = self._serving_loop()

    def _learn(self) -> None:
        config = self.config
        self.board_watch = BoardWatch(self.clock, BoardReader().read, self.reporter.event)
        self.clock_watch = ClockWatch(self.clock, self.reporter.event)
        self._wear = Wear(0.0)
        self.learner = Learner(
            config,
            clock=self.clock,
            labelled_since=self._reader.labelled_since,
            begin=self.registry.begin_run,
            end=self.registry.end_run,
            notify=self.reporter.event,
            consumed=int(self.registry.get_value("consumed") or 0),
            keep=lambda values: self.registry.set_value(SETBACKS, values),
            kept=self.registry.get_value(SETBACKS),
            bundle=self._state.bundle.fingerprint,
            conditions=ConditionsReader(
                self.clock,
                VitalsReader(config.storage.dir),
                self.serving.latencies,
                lambda: self.board_watch.reasons,
                self._worn,
            ).read,
        )
        self.learner.budget = remembered.budget(self.registry)
        self.ingest = self._ingest()

    def _report(self, give_up: Callable[[str], None]) -> None:
        config = self.config
        self.selfreport = SelfReport(
            clock=self.clock,
            boot=self.boot,
            samples=self.samples,
            registry=self.registry,
            server=self.server,
            serving=self.serving,
            learner=self.learner,
            promoter=self.promoter,
            ingest=self.ingest,
            session=self.session,
            vitals=VitalsReader(config.storage.dir, child=lambda: self.learner.process.pid),
            requested=lambda: self.asking.requested,
            outbox=self.publishing.outbox,
            recovery=self.recovery,
            paused=self._paused,
            commands=lambda: dict(self.control.counts),
        )
        self.telling = Telling(
            settings=self._settings,
            selfreport=self.selfreport,
            reporter=self.reporter,
            registry=self.registry,
            samples=self.samples,
            sequence=self._sequence,
            notifier=self.notifier,
            clock=self.clock,
            give_up=give_up,
            on_metrics=self._on_metrics,
        )
        self.learning = Learning(
            learner=self.learner,
            succession=self.succession,
            samples=self.samples,
            registry=self.registry,
            recall=self.recall,
            drift_state=self.server.drift_state,
            publish_states=self.telling.states,
            promoted=self.publishing.weights,
            anomalies=self.server.anomalies,
        )
        self._steer()

    def _steer(self) -> None:
        parts = Parts(
            config=self.config,
            path=self._path,
            clock=self.clock,
            topics=self.topics,
            session=self.session,
            publishing=self.publishing,
            registry=self.registry,
            samples=self.samples,
            reader=self._reader,
            ingest=self.ingest,
            server=self.server,
            serving=self.serving,
            learner=self.learner,
            learning=self.learning,
            promoter=self.promoter,
            succession=self.succession,
            recall=self.recall,
            selfreport=self.selfreport,
            publish_states=self.telling.states,
            notify=self.reporter.event,
            tasks=lambda: self.control.tasks,
            receive=self._receive_command,
        )
        labelling = Labelling(self.schema, self.samples, self.ingest, self.serving, self.learning, self.clock)
        self.arrivals = Arrivals(
            self.config,
            clock=self.clock,
            registry=self.registry,
            session=self.session,
            topics=self.topics,
            publishing=self.publishing,
            updates=self.updates,
            learning=self.learning,
            succession=self.succession,
            process=self.learner.process,
            installing=self.installing,
            notify=self.reporter.event,
        )
        self.steering = Steering(parts, labelling, self.arrivals.commands())
        self.control = Control(
            self.steering.commands(),
            config=self.config.commands,
            clock=self.clock,
            journal=self.registry,
            answer=self.steering.answer,
            acknowledge=self.steering.pauses.second_line.acknowledge,
            check=self.steering.check,
            progress=self.steering.progress,
            authorise=authorisation(self.config, self.registry, self.clock),
        )
        self.discovery = Discovery(
            self.config,
            session=self.session,
            registry=self.registry,
            commands=self.steering.commands(),
            later=self.timetable.soon,
        )
        self.edgenode = self._edge_node()
        self.membership = self._membership()

        self.web = self._web(parts)

    def _web(self, parts: Parts) -> Front | None:
        if self.config.web is None:
            return None
        from edged.web.front import Front

        web = Front(self.config.web, parts)
        self.reporter.heard = web.heard
        return web

    def _edge_node(self) -> EdgeNode | None:
        if self.config.sparkplug is None:
            return None
        from edged.edgenode import EdgeNode

        return EdgeNode(
            self.config,
            registry=self.registry,
            control=self.control,
            topics=self.topics,
            commands=self.steering.commands(),
            clock=self.clock,
        )

    def _membership(self) -> Membership | None:
        if self.config.fleet is None:
            return None
        from edged.membership import Membership

        return Membership(
            self.config,
            self.config.fleet,
            clock=self.clock,
            registry=self.registry,
            session=self.session,
            learner=self.learner,
            learning=self.learning,
            succession=self.succession,
            present_bundle=self._present_bundle,
            labelled_since=self._reader.labelled_since,
            notify=self.reporter.event,
        )

    def _first_model(self) -> Served:
        bundle = self._state.bundle
        served = self.promoter.boot(bundle.inference_model, bundle.inference_sha256)
        for version in self.promoter.unusable:
            self.recovery.note(f"model {version} cannot be used: model {served.version} serves")
        return served

    def _load_model(self, path: Path) -> InferenceModel:
        model = InferenceModel(
            path,
            threads=fitting(self.config.serving.threads),
            breathe=_breathe,
            providers=self.config.serving.provider,
        )
        model.warm_up()
        return model

    def _asking(self) -> Asking:
        labels = self.config.labels
        rule = LabelRequests(
            labels.request_share,
            random=labels.request_random,
            holdout=self.config.gate.holdout,
            per_day=labels.requests_per_day,
            seed=self.boot,
        )
        return Asking(rule, self.schema, self.clock, self.reporter.event)

    def _serving_loop(self) -> ServingLoop:
        return ServingLoop(
            self.server,
            schema=self.schema,
            batch=self.config.serving.batch,
            publish=self._predictions,
            sample_id=self._sample_id,
            on_answered=self._on_answered,
            on_outcome=self._on_outcome,
            on_failed=self._on_failed,
            on_drift=self._on_drift,
            on_fall=self._on_fall,
            on_anomaly=lambda change: self.reporter.event("anomaly", change.as_dict()),
            beat=lambda: self.watchdog.beat("serve"),
        )

    def _ingest(self) -> Ingest:
        stream = self.config.stream
        codec = sample_codec(stream, now=self.clock.now, publish=self.session.publish)
        label_filter = stream.label_topic
        forecast = (stream.forecast_columns, stream.horizon) if self.schema.task == "forecast" else None
        return Ingest(
            config=self.config.storage,
            schema=self.schema,
            unacknowledged=self.config.mqtt.receive_maximum,
            store=self.samples,
            clock=self.clock,
            decode=codec.decode,
            decode_label=label_codec(stream).decode if label_filter else None,
            is_label=(lambda topic: matches(label_filter, topic)) if label_filter else (lambda _: False),
            acknowledge=self.session.ack,
            redeliver=self.session.drop,
            on_batch=self._on_batch,
            on_labels=self._on_labels,
            on_committed=self._on_committed,
            on_rejected=self._on_rejected,
            beat=lambda: self.watchdog.beat("ingest"),
            on_problem=self._tell_soon,
            forecast=forecast,
            join_expiry=stream.join_expiry,
            intake=Intake(stream.intake_rules(), self.schema.channels),
            windowing=None if stream.window is None else Windowing(stream.window.rules(), stream.width),
            notice=self._notice,
            in_flight=lambda: in_flight(self.config.mqtt, self.session.protocol),
        )

    # What is made later than those who ask for it.

    def _paused(self) -> list[str]:
        return self.steering.pauses.paused()

    def _settings(self) -> dict[str, Any]:
        return self.steering.settings.state()

    def _receive_command(self, delivery: Delivery) -> None:
        self.control.receive(delivery)

    # ---- samples and labels ----------------------------------------------------------------

    def _on_batch(self, batch: Batch, received: NDArray[np.float64]) -> None:
        self.serving.submit(batch, received)

    def _on_labels(self, updates: list[LabelUpdate]) -> None:
        self.serving.label(updates)

    def _on_committed(self, labelled: int) -> None:
        if labelled or self.schema.labels_itself:
            self.learning.wake()

    def _on_rejected(self, rejected: Rejected) -> None:
        held = self._throttle.admit(rejected.reason)
        if held is not None:
            self.reporter.event(
                "sample_quarantined",
                {"reason": rejected.reason, "topic": rejected.topic, "detail": rejected.detail, "more": held},
            )

    def _notice(self, event: str, fields: dict[str, Any]) -> None:
        """What a stream's guards noticed; floods are told of once a second."""
        held = self._throttle.admit(event) if event == "sensor_flooding" else 0
        if held is not None:
            self.reporter.event(event, {"more": held} | fields)

    def _predictions(self, payloads: list[bytes]) -> None:
        self.publishing.predictions(payloads)
        if self.edgenode is not None:
            self.edgenode.predicted(payloads)
        if self.web is not None:
            self.web.predicted(payloads)

    def _on_answered(self, batch: Batch, part: slice, ids: SequenceOf[str], made: Predictions) -> None:
        self.asking.answered(batch, part, ids, made)
        if self.web is not None:
            self.web.answered(made, ids)

    def _sample_id(self, offset: int) -> str:
        return f"{self.boot}-{offset}"

    # ---- learning and promotion ------------------------------------------------------------

    def _on_outcome(self, passed: bool) -> None:
        version = self.server.champion.version
        self.learning.later(lambda: self.succession.probation_ended(version, passed))

    def _on_failed(self, served: Served, reason: str) -> None:
        self.learning.later(lambda: self.succession.champion_failed(served.version, reason))

    def _worn(self) -> bool:
        rate = self.config.training.max_write_rate
        if rate is None:
            return False
        self._wear.rate = rate
        return self._wear.worn(self.learner.written, self.clock.monotonic())

    def _rest(self, times: int) -> int:
        return self.learner.rest(times)

    def _on_drift(self, signal: DriftSignal) -> None:
        self.reporter.event("drift_detected", signal.as_dict(self.schema.names))
        self.learning.drifted(signal, self.server.rise)

    def _on_fall(self) -> None:
        self.learning.fallen(self.server.rise)

    # ---- reporting -------------------------------------------------------------------------

    def _on_metrics(self, metrics: dict[str, Any]) -> None:
        if self.edgenode is not None:
            self.edgenode.report(metrics)

    def _online(self) -> None:
        self.reporter.birth()
        self.discovery.online()
        self._connection_changed()

    def _connection_changed(self) -> None:
        self.publishing.wake()
        self._tell_soon()

    def _tell_soon(self) -> None:
        self.timetable.soon(self.telling.now)

    def _keep_learning(self) -> None:
        """For the next start; on a full disk it goes on from an older state."""
        try:
            self.learning.keep()
        except StorageError as problem:
            log.warning("state_not_kept", problem=problem.line())

    # ---- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and begin to work."""
        self.serving.start()
        self.ingest.start()
        self.control.start()  # before the learning thread: a run that goes on is told whose it is
        self.learning.start()
        self.publishing.start()
        self._plan()
        stream = self.config.stream
        # A message comes once for each filter that covers it: subscribe to none that another covers.
        filters = widest([*stream.topics, *([stream.label_topic] if stream.label_topic else [])])
        self.session.subscribe(filters, 1, self.ingest.receive)
        self.session.subscribe([self.topics.requests], 1, self.control.receive, as_published=True)
        self.steering.pauses.begin()
        self.session.subscribe(self.discovery.filters, 1, self.discovery.receive)
        self.arrivals.start()
        if self.membership is not None:
            self.membership.start()
        if self.web is not None:
            self.web.listen()
        self.session.start()
        if self.edgenode is not None:
            self.edgenode.start()
        self.reporter.event(
            "started",
            {
                "boot": self.boot,
                "version": __version__,
                "model": self.server.champion.version,
                "boot_reason": self.recovery.reason,
                "repaired": self.recovery.repaired,
            },
        )
        gc.collect()
        gc.freeze()
        self.notifier.ready()
        if self.web is not None:
            self.web.start()

    def _plan(self) -> None:
        training = self.config.training
        if training.cron is not None:
            self.timetable.cron(training.cron, self._scheduled)
        elif training.every:
            self.timetable.every(training.every, self._scheduled)
        self.timetable.every(self.config.report.every, self.telling.periodically)
        if self.config.weights.every:
            self.timetable.every(self.config.weights.every, self.publishing.weights_if_new)
        self.timetable.every(WATCH_SECONDS, self.board_watch.look)
        self.timetable.every(WATCH_SECONDS, self.clock_watch.look)
        pacer = Pacer(
            training.serving_p99,
            self.serving.latencies,
            self.learner.process,
            lambda: training.wait_throttled and bool(self.board_watch.reasons),
        )
        self.timetable.every(1.0, pacer.look)
        self.timetable.soon(self.telling.now)
        self.timetable.start()

    def _scheduled(self) -> None:
        self.learner.triggers.scheduled = True
        self.learning.wake()

    def reload(self, path: Path) -> None:
        """Read the configuration again: the log level is applied, other changes are named.

        A configuration that cannot be used changes nothing.
        """
        self.notifier.reloading()
        try:
            config = configfile.load(path)
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
        if self.web is not None:
            self.web.stop()
        self.learning.end()
        self.timetable.stop(1.0)
        self.learner.process.cancel()
        self.ingest.stop()
        self.serving.stop()
        self.control.stop()
        self.arrivals.stop()
        if self.membership is not None:
            self.membership.stop()
        self.steering.pauses.end()
        self.learning.join(8.0)
        self.learner.process.close()
        self._keep_learning()
        self.reporter.farewell()
        if self.edgenode is not None:
            self.edgenode.stop()
        if damaged is None:
            self.telling.keep_status({**self.selfreport.status(), "state": "stopped"})
        self.session.stop()
        self.publishing.stop()
        self._sequence.end()
        self._state.close("damaged" if damaged else "clean_stop", damaged)
