"""The daemon: `edged run`. The one place that knows every part of the serving side.

Threads: network (paho), ingest, serve, learn, control, scheduler, and the main thread that waits.
Imports nothing of the training stack; training happens in a child process.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged import __version__, configfile, logs, remembered
from edged.clock import SystemClock
from edged.conditions import ConditionsReader, Pacer
from edged.engines.inference import InferenceModel
from edged.errors import ConfigError, EdgedError, StorageError
from edged.host.notify import Notifier, Watchdog
from edged.host.vitals import VitalsReader
from edged.learning import Learning
from edged.loop.bootstrap import open_samples, with_bundle
from edged.loop.control import Control
from edged.loop.ingest import Ingest
from edged.loop.learn import Learner
from edged.loop.promote import Promoter
from edged.loop.recall import Recall
from edged.loop.report import Reporter, Throttle, will_payload
from edged.loop.serve import Server, ServingLoop
from edged.loop.succession import Succession
from edged.mqtt import weights
from edged.mqtt.codecs import JsonCodec, LabelCodec
from edged.mqtt.session import Session
from edged.mqtt.topics import Topics, matches, widest
from edged.selfreport import SelfReport
from edged.steering import Steering
from edged.storage.bundles import Bundle
from edged.storage.files import DirectoryLock
from edged.storage.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.drift import DriftSignal
    from edged.domain.protocols import Served
    from edged.domain.sample import Batch, LabelUpdate, Rejected

log = logs.get_logger("edged.daemon")

SWITCH_INTERVAL = 0.0001  # seconds a thread may hold the interpreter: bounds what others add to a prediction
BREATH = 0.003  # seconds left to the serving thread between two pieces of loading a model
PATIENCE = 10.0  # seconds that predictions wait for a busy broker


def _breathe() -> None:
    time.sleep(BREATH)


class Daemon:
    """All parts of one running device, wired together."""

    def __init__(self, config: Config, notifier: Notifier) -> None:
        self.clock = SystemClock()
        self.notifier = notifier
        state = config.storage.dir
        state.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(state)
        self._lock.acquire()
        self.config = config = with_bundle(config)
        self.schema = config.stream.to_schema()
        bundle = Bundle.open(_bundle_path(config))
        bundle.check_schema(self.schema)
        self.registry = Registry.open(state)
        self.boot = self.registry.next_boot()
        self.samples = open_samples(config)
        self._reader = open_samples(config, readonly=True)
        self._pause = threading.Event()  # never set: something to wait on without spinning
        self.unpublished = 0
        self._throttle = Throttle(self.clock)
        self.watchdog = Watchdog(notifier, ("ingest", "serve"))
        self._wire(bundle)

    # ---- wiring ----------------------------------------------------------------------------

    def _wire(self, bundle: Bundle) -> None:
        config = self.config
        self.topics = Topics(config.topic_root)
        self.session = Session(
            config.mqtt,
            client_id=config.mqtt.client_id or f"edged-{config.device.id}",
            will=(self.topics.status, will_payload(self.boot), True),
            on_online=self._online,
        )
        self.reporter = Reporter(
            topics=self.topics, publish=self.session.publish, clock=self.clock, boot=self.boot
        )
        self.promoter = Promoter(
            config=config.gate,
            schema=self.schema,
            registry=self.registry,
            holdout=self._reader,
            load_model=self._load_model,
            clock=self.clock,
            keep_models=config.storage.keep_models,
            staging=config.storage.dir / "candidates",
            breathe=_breathe,
            regimes=remembered.regimes(self.registry),
        )
        self.recall = Recall(self.schema, self.promoter.regimes, self._reader, enabled=config.gate.recall)
        self.promoter.bank = self.recall.bank
        self.server = Server(
            config.serving,
            config.gate,
            self.schema,
            self.promoter.boot(bundle.inference_model),
            config.drift.rules(),
        )
        remembered.restore_drift(self.registry, self.server.drift)
        self.recall.crowned(self.server.champion.version)
        self.succession = Succession(self.promoter, self.server, self.reporter.event)
        self.serving = self._serving_loop()
        self.learner = Learner(
            config,
            clock=self.clock,
            labelled_since=self._reader.labelled_since,
            begin=self.registry.begin_run,
            end=self.registry.end_run,
            notify=self.reporter.event,
            consumed=int(self.registry.get_value("consumed") or 0),
            conditions=ConditionsReader(
                self.clock, VitalsReader(config.storage.dir), self.serving.latencies
            ).read,
        )
        self.learner.budget = remembered.budget(self.registry)
        self.ingest = self._ingest()
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
            vitals=VitalsReader(config.storage.dir),
            unpublished=lambda: self.unpublished,
        )
        self.learning = Learning(
            learner=self.learner,
            succession=self.succession,
            samples=self.samples,
            registry=self.registry,
            recall=self.recall,
            drift_state=self.server.drift_state,
            publish_states=self._publish_states,
            promoted=self._promoted,
        )
        self.steering = Steering(
            learning=self.learning,
            succession=self.succession,
            selfreport=self.selfreport,
            publish_states=self._publish_states,
            publish=self.session.publish,
            topics=self.topics,
        )
        self.control = Control(
            self.steering.commands(), answer=self.steering.answer, acknowledge=self.session.ack
        )

    def _load_model(self, path: Path) -> InferenceModel:
        model = InferenceModel(
            path,
            threads=self.config.serving.threads,
            breathe=_breathe,
            providers=self.config.serving.provider,
        )
        model.warm_up()
        return model

    def _serving_loop(self) -> ServingLoop:
        return ServingLoop(
            self.server,
            schema=self.schema,
            batch=self.config.serving.batch,
            publish=self._publish_predictions,
            sample_id=self._sample_id,
            on_outcome=self._on_outcome,
            on_failed=self._on_failed,
            on_drift=self._on_drift,
            on_fall=self._on_fall,
            beat=lambda: self.watchdog.beat("serve"),
        )

    def _ingest(self) -> Ingest:
        stream = self.config.stream
        codec = JsonCodec(stream)
        label_filter = stream.label_topic
        forecast = (stream.forecast_columns, stream.horizon) if self.schema.task == "forecast" else None
        return Ingest(
            config=self.config.storage,
            schema=self.schema,
            unacknowledged=self.config.mqtt.receive_maximum,
            store=self.samples,
            clock=self.clock,
            decode=codec.decode,
            decode_label=LabelCodec(stream).decode if label_filter else None,
            is_label=(lambda topic: matches(label_filter, topic)) if label_filter else (lambda _: False),
            acknowledge=self.session.ack,
            redeliver=self.session.drop,
            on_batch=self._on_batch,
            on_labels=self._on_labels,
            on_committed=self._on_committed,
            on_rejected=self._on_rejected,
            beat=lambda: self.watchdog.beat("ingest"),
            forecast=forecast,
        )

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

    def _publish_predictions(self, payloads: list[bytes]) -> None:
        if not self.config.serving.publish:
            return
        topic, qos, session = self.topics.predictions, self.config.serving.qos, self.session
        # While the broker takes them, predictions wait for room rather than being dropped.
        deadline = self.clock.monotonic() + PATIENCE
        while session.room(qos) < len(payloads) and session.connected and self.clock.monotonic() < deadline:
            self._pause.wait(0.002)
        for payload in payloads:
            if not session.publish(topic, payload, qos=qos):
                self.unpublished += 1

    def _sample_id(self, offset: int) -> str:
        return f"{self.boot}-{offset}"

    # ---- learning and promotion ------------------------------------------------------------

    def _on_outcome(self, passed: bool) -> None:
        version = self.server.champion.version
        self.learning.later(lambda: self.succession.probation_ended(version, passed))

    def _on_failed(self, served: Served, reason: str) -> None:
        self.learning.later(lambda: self.succession.champion_failed(served.version, reason))

    def _on_drift(self, signal: DriftSignal) -> None:
        self.reporter.event("drift_detected", signal.as_dict(self.schema.names))
        self.learning.drifted(signal)

    def _on_fall(self) -> None:
        self.learning.fallen()

    # ---- reporting -------------------------------------------------------------------------

    def _online(self) -> None:
        self.reporter.birth()
        self._publish_states()

    def _report(self) -> None:
        """The periodic job: metrics, states, and what `edged status` reads when nobody answers."""
        self.reporter.metrics(self.selfreport.metrics())
        self._publish_states()
        self._keep_status(self.selfreport.status())
        self.notifier.status(f"serving model {self.server.champion.version}")

    def _keep_status(self, status: dict[str, Any]) -> None:
        """For `edged status`; on a full disk it stays the older one."""
        try:
            self.registry.set_value("status", status)
        except StorageError as problem:
            log.warning("status_not_kept", problem=problem.line())

    def _keep_learning(self) -> None:
        """For the next start; on a full disk it goes on from an older state."""
        try:
            self.learning.keep()
        except StorageError as problem:
            log.warning("state_not_kept", problem=problem.line())

    def _publish_states(self) -> None:
        self.selfreport.states(self.reporter)
        shown = {"stream", "training", "drift", "gate", "serving", "storage", "report"}
        self.reporter.state("config", self.config.model_dump(mode="json", include=shown))

    # ---- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and begin to work."""
        self.serving.start()
        self.ingest.start()
        self.control.start()
        self.learning.start()
        budget = self.config.training.serving_p99
        pacer = Pacer(budget, self.serving.latencies, self.learner.process) if budget else None
        self.scheduler = _schedule(self.config, self._scheduled, self._report, pacer)
        stream = self.config.stream
        # A message comes once for each filter that covers it: subscribe to none that another covers.
        filters = widest([*stream.topics, *([stream.label_topic] if stream.label_topic else [])])
        self.session.subscribe(filters, 1, self.ingest.receive)
        self.session.subscribe([self.topics.requests], 1, self.control.receive)
        self.session.start()
        gc.collect()
        gc.freeze()
        self.notifier.ready()

    def _scheduled(self) -> None:
        self.learner.triggers.scheduled = True
        self.learning.wake()

    def _promoted(self, version: int) -> None:
        if not self.config.report.weights:
            return
        blob = (self.registry.verify(version).parent / weights.FILE).read_bytes()
        chunks = weights.split(blob, self.config.report.chunk)
        manifest = json.dumps(weights.manifest(version, blob, chunks)).encode()
        for number, chunk in enumerate(chunks):
            self.session.publish(self.topics.weights(version, number), chunk, qos=1)
        self.session.publish(self.topics.weights(version, "manifest"), manifest, qos=1)

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

    def stop(self) -> None:
        """Orderly: no new messages, what is here committed and answered, trainer ended, goodbye said."""
        self.notifier.stopping()
        self.learning.end()
        self.scheduler.shutdown(wait=False)
        self.learner.process.cancel()
        self.ingest.stop()
        self.serving.stop()
        self.control.stop()
        self.learning.join(8.0)
        self.learner.process.close()
        self._keep_learning()
        self.reporter.farewell()
        self._keep_status({**self.selfreport.status(), "state": "stopped"})
        self.session.stop()
        # The writer last: closing the last connection folds the write-ahead log into the file.
        self._reader.close()
        self.samples.close()
        self.registry.close()
        self._lock.release()


def _bundle_path(config: Config) -> Path:
    if config.model.bundle is None:
        raise ConfigError("no bundle", where="model.bundle")
    return config.model.bundle


def _schedule(
    config: Config, train: Callable[[], None], report: Callable[[], None], pacer: Pacer | None
) -> Any:
    """Interval or cron for training, interval for reports; missed runs are made up for once."""
    from apscheduler.schedulers.background import BackgroundScheduler
    from apscheduler.triggers.cron import CronTrigger

    scheduler = BackgroundScheduler(
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
    )
    training = config.training
    if training.cron is not None:
        scheduler.add_job(train, CronTrigger.from_crontab(training.cron))
    elif training.every is not None:
        scheduler.add_job(train, "interval", seconds=training.every)
    scheduler.add_job(report, "interval", seconds=config.report.every)
    if pacer is not None:
        scheduler.add_job(pacer.look, "interval", seconds=1.0)
    scheduler.start()
    return scheduler


def run(path: Path) -> int:
    """Run the daemon until SIGTERM or SIGINT; the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    # A queue: SIGHUP and SIGTERM may come while the other is being handled, or before all is ready.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: signals.put(got))
    config = configfile.load(path)
    logs.configure(config.log.level, config.log.format)
    notifier = Notifier()
    daemon = Daemon(config, notifier)
    daemon.start()
    log.info(
        "running",
        device=config.device.id,
        version=__version__,
        pid=os.getpid(),
        model=daemon.server.champion.version,
    )
    while signals.get() == signal.SIGHUP:
        daemon.reload(path)
    log.info("stopping")
    daemon.stop()
    return 0


def main() -> int:
    """`python -m edged.daemon CONFIG`."""
    try:
        return run(Path(sys.argv[1]))
    except EdgedError as problem:
        sys.stderr.write(f"edged: {problem.line()}\n")
        return problem.exit_code


if __name__ == "__main__":
    sys.exit(main())
