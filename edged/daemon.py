"""The daemon: `edged run`. The one place that knows every part of the serving side.

Threads: network (paho), ingest, serve, learn, control, scheduler, and the main thread that waits.
Imports nothing of the training stack; training happens in a child process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged import __version__, configfile, logs
from edged.clock import SystemClock
from edged.engines.inference import InferenceModel
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError
from edged.host.notify import Notifier, Watchdog
from edged.host.vitals import VitalsReader
from edged.loop.bootstrap import with_bundle
from edged.loop.control import Control
from edged.loop.ingest import Ingest
from edged.loop.learn import Learner
from edged.loop.promote import Promoter
from edged.loop.report import Reporter, Throttle, will_payload
from edged.loop.serve import Server, ServingLoop
from edged.mqtt.codecs import JsonCodec, LabelCodec
from edged.mqtt.session import Session
from edged.mqtt.topics import Topics, matches
from edged.storage.bundles import Bundle
from edged.storage.files import DirectoryLock
from edged.storage.registry import Registry
from edged.storage.samples import SampleLog

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.protocols import Served
    from edged.domain.sample import Batch, LabelUpdate, Rejected

log = logs.get_logger("edged.daemon")

SWITCH_INTERVAL = 0.0005  # seconds a thread may hold the interpreter: bounds what others add to a prediction
LEARN_IDLE = 1.0
TRAIN_OPTIONS = {"steps": int, "learning_rate": float}


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
        self.samples = self._open_samples(readonly=False)
        self._reader = self._open_samples(readonly=True)
        self._started = self.clock.monotonic()
        self._stop = threading.Event()
        self._learn_wake = threading.Event()
        self._promotion = threading.RLock()
        self._throttle = Throttle(self.clock)
        self._options: dict[str, Any] = {}
        self._outcomes: list[Callable[[], None]] = []
        self._vitals = VitalsReader(state)
        self._rate = _Rate(self.clock.monotonic())
        self.watchdog = Watchdog(notifier, ("ingest", "serve"))
        self._wire(bundle)

    # ---- wiring ----------------------------------------------------------------------------

    def _open_samples(self, *, readonly: bool) -> SampleLog:
        storage = self.config.storage
        return SampleLog.open(
            storage.dir / "samples.db",
            self.schema,
            holdout=self.config.gate.holdout,
            max_bytes=storage.max_bytes,
            max_age=storage.max_age,
            quarantine_rows=storage.quarantine_rows,
            readonly=readonly,
        )

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
        )
        self.server = Server(
            config.serving, config.gate, self.schema, self.promoter.boot(bundle.inference_model)
        )
        self.serving = self._serving_loop()
        self.learner = Learner(
            config,
            clock=self.clock,
            labelled_since=self._reader.labelled_since,
            begin=self.registry.begin_run,
            end=self.registry.end_run,
            notify=self.reporter.event,
            consumed=int(self.registry.get_value("consumed") or 0),
        )
        self.ingest = self._ingest()
        self.control = Control(
            {
                "train": self._command_train,
                "rollback": self._command_rollback,
                "status": self._command_status,
            },
            answer=self._answer,
            acknowledge=self.session.ack,
        )
        self._learning = threading.Thread(target=self._learn_loop, name="learn", daemon=True)

    def _load_model(self, path: Path) -> InferenceModel:
        model = InferenceModel(path, threads=self.config.serving.threads)
        model.warm_up()
        return model

    def _serving_loop(self) -> ServingLoop:
        return ServingLoop(
            self.server,
            schema=self.schema,
            batch=self.config.serving.batch,
            publish=self._publish_predictions,
            sample_id=self._sample_id,
            on_outcome=lambda passed: self._later(lambda: self._probation_ended(passed)),
            on_failed=lambda served, why: self._later(lambda: self._champion_failed(served, why)),
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
            self._learn_wake.set()

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
        topic, qos, publish = self.topics.predictions, self.config.serving.qos, self.session.publish
        for payload in payloads:
            publish(topic, payload, qos=qos)

    def _sample_id(self, offset: int) -> str:
        return f"{self.boot}-{offset}"

    # ---- learning and promotion ------------------------------------------------------------

    def _later(self, action: Callable[[], None]) -> None:
        """Leave an action to the learning thread: the serving thread must not wait for it."""
        self._outcomes.append(action)
        self._learn_wake.set()

    def _learn_loop(self) -> None:
        while not self._stop.is_set():
            self._learn_wake.wait(LEARN_IDLE)
            self._learn_wake.clear()
            try:
                self._settle()
                result = self.learner.step(self._take_options())
                if result is not None:
                    self._settle()
                    self._promote(result)
                    self.samples.protect(result["memory"])
                    self.registry.set_value("consumed", self.learner.consumed)
                    self._publish_states()
            except Exception:
                log.exception("learning_failed")
                self._stop.wait(LEARN_IDLE)

    def _settle(self) -> None:
        while self._outcomes:
            self._outcomes.pop(0)()

    def _take_options(self) -> dict[str, Any]:
        options, self._options = self._options, {}
        return options

    def _promote(self, result: dict[str, Any]) -> None:
        with self._promotion:
            champion = self.server.champion
            verdict, served = self.promoter.consider(result, champion)
            if served is None:
                self.reporter.event("candidate_rejected", {"run": result["run"], **verdict.as_dict()})
                return
            try:
                self.promoter.crown(served, "; ".join(verdict.reasons))
            except StorageError as problem:
                self.reporter.event("candidate_rejected", {"run": result["run"], "reasons": [problem.line()]})
                return
            self.server.swap(served)
        self.reporter.event(
            "model_promoted",
            {
                "version": served.version,
                "parent": champion.version,
                "run": result["run"],
                **verdict.as_dict(),
            },
        )
        if self.config.report.weights:
            self._publish_weights(served.version)

    def _publish_weights(self, version: int) -> None:
        from edged.mqtt import weights

        blob = (self.registry.verify(version).parent / weights.FILE).read_bytes()
        chunks = weights.split(blob, self.config.report.chunk)
        manifest = json.dumps(weights.manifest(version, blob, chunks)).encode()
        for number, chunk in enumerate(chunks):
            self.session.publish(self.topics.weights(version, number), chunk, qos=1)
        self.session.publish(self.topics.weights(version, "manifest"), manifest, qos=1)

    def _probation_ended(self, passed: bool) -> None:
        version = self.server.champion.version
        if passed:
            self.promoter.confirm(version)
            return
        self._roll_back("probation failed: live quality fell below its predecessor's")

    def _champion_failed(self, served: Served, why: str) -> None:
        """The serving loop has gone back by itself; make it durable."""
        with self._promotion:
            back = self.promoter.rollback(served.version, why, to=self.server.champion.version)
        self.reporter.event("model_rolled_back", {"from": served.version, "to": back.version, "reason": why})
        self._publish_states()

    def _roll_back(self, reason: str, to: int | None = None) -> dict[str, Any]:
        with self._promotion:
            failing = self.server.champion.version
            previous = self.server.previous
            if to is None and previous is not None and previous.version < failing:
                to = previous.version
            if to == failing:
                raise RefusedError("that version is being served already", where=f"version {to}")
            served = self.promoter.rollback(failing, reason, to=to)
            self.server.swap(served, watch=False)
        change = {"from": failing, "to": served.version, "reason": reason}
        self.reporter.event("model_rolled_back", change)
        self._publish_states()
        return change

    # ---- commands --------------------------------------------------------------------------

    def _command_train(self, request: dict[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for name, value in request.items():
            if name == "transaction":
                continue
            kind = TRAIN_OPTIONS.get(name)
            if kind is None:
                raise ConfigError(f"unknown option; known: {', '.join(TRAIN_OPTIONS)}", where=name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1_000_000:
                raise ConfigError(f"{value!r} is no positive number", where=name)
            options[name] = kind(value)
        self._options = options
        self.learner.triggers.commanded = True
        self._learn_wake.set()
        return {"state": "accepted", "new_samples": self._new_labelled()}

    def _new_labelled(self) -> int:
        counters = self.samples.counters()
        return max(0, counters.last_seq - self.learner.consumed)

    def _command_rollback(self, request: dict[str, Any]) -> dict[str, Any]:
        to = request.get("version")
        if to is not None and (isinstance(to, bool) or not isinstance(to, int)):
            raise ConfigError(f"{to!r} is no version number", where="version")
        return self._roll_back("command", to)

    def _command_status(self, _: dict[str, Any]) -> dict[str, Any]:
        return self.status()

    def _answer(self, command: str, payload: bytes, delivery: Any) -> None:
        if delivery.response_topic:
            self.session.publish(delivery.response_topic, payload, qos=1, correlation=delivery.correlation)
        else:
            self.session.publish(self.topics.response(command), payload, qos=1)

    # ---- reporting -------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The summary of `edged status` and `request/status`."""
        counters = self.samples.counters()
        champion = self.server.champion
        runs = self.registry.runs(1)
        return {
            "state": "degraded" if self.ingest.problem else "online",
            "problem": self.ingest.problem,
            "version": __version__,
            "boot": self.boot,
            "samples": counters.samples,
            "labels": counters.labels,
            "quarantined": counters.quarantined,
            "evicted": counters.evicted,
            "model": {"version": champion.version, "quality": self.server.live_quality()},
            "training": {
                "runs": self.learner.trainings,
                "last": asdict(runs[0]) if runs else None,
                "progress": self.learner.progress,
            },
            "outbox": {"pending": self.session.pending},
            "engine": self.learner.engine,
        }

    def _online(self) -> None:
        self.reporter.birth()
        self._publish_states()

    def _publish_states(self) -> None:
        champion = self.server.champion
        record, reign = self.registry.get(champion.version), self.registry.reign()
        self.reporter.state(
            "model",
            {
                "version": champion.version,
                "since": reign.ts if reign else None,
                "parent": record.parent,
                "source": record.source,
                "metrics": {k: v for k, v in record.metrics.items() if k != "scale"},
            },
        )
        self.reporter.state(
            "training",
            {
                "engine": self.learner.engine,
                "runs": self.learner.trainings,
                "failures": self.learner.failures,
                "promotions": self.promoter.promotions,
                "rejections": self.promoter.rejections,
                "rollbacks": self.promoter.rollbacks,
            },
        )
        counters = self.samples.counters()
        self.reporter.state(
            "buffer",
            {
                "rows": counters.rows,
                "bytes": counters.bytes,
                "evicted": counters.evicted,
                "problem": self.ingest.problem,
            },
        )

    def _report(self) -> None:
        """The periodic job: metrics, states, and what `edged status` reads when nobody answers."""
        counters = self.samples.counters()
        vitals = self._vitals.read()
        self.reporter.metrics(
            {
                "uptime_s": round(self.clock.monotonic() - self._started, 1),
                "ingest": {
                    "samples": counters.samples,
                    "per_s": self._rate.of(counters.samples, self.clock.monotonic()),
                    "waiting": self.ingest.waiting,
                    "redelivered": self.ingest.redelivered,
                    "failed_commits": self.ingest.failed_commits,
                },
                "buffer": {"rows": counters.rows, "bytes": counters.bytes, "evicted": counters.evicted},
                "quarantine": counters.quarantined,
                "training": {
                    "runs": self.learner.trainings,
                    "failures": self.learner.failures,
                    "running": self.learner.progress,
                    "new": self._new_labelled(),
                },
                "model": self.server.champion.version,
                "live": self.server.live_quality(),
                "predictions": self.server.predictions,
                "latency": self.serving.latencies.percentiles(),
                "outbox": {"pending": self.session.pending},
                "host": vitals.as_dict(),
            }
        )
        self._publish_states()
        self.registry.set_value("status", self.status())
        self.notifier.status(f"serving model {self.server.champion.version}, {counters.samples} samples")

    # ---- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and begin to work."""
        self.serving.start()
        self.ingest.start()
        self.control.start()
        self._learning.start()
        self.scheduler = _schedule(self.config, self._scheduled, self._report)
        stream = self.config.stream
        filters = [*stream.topics, *([stream.label_topic] if stream.label_topic else [])]
        self.session.subscribe(filters, 1, self.ingest.receive)
        self.session.subscribe([self.topics.requests], 1, self.control.receive)
        self.session.start()
        gc.collect()
        gc.freeze()
        self.notifier.ready()

    def _scheduled(self) -> None:
        self.learner.triggers.scheduled = True
        self._learn_wake.set()

    def stop(self) -> None:
        """Orderly: no new messages, what is here committed and answered, trainer ended, goodbye said."""
        self.notifier.stopping()
        self._stop.set()
        self._learn_wake.set()
        self.scheduler.shutdown(wait=False)
        self.learner.process.cancel()
        self.ingest.stop()
        self.serving.stop()
        self.control.stop()
        self._learning.join(8.0)
        self.learner.process.close()
        self.reporter.farewell()
        self.registry.set_value("status", {**self.status(), "state": "stopped"})
        self.session.stop()
        self.samples.close()
        self._reader.close()
        self.registry.close()
        self._lock.release()


class _Rate:
    """Events a second between two readings of a counter."""

    def __init__(self, monotonic: float) -> None:
        self._at, self._count = monotonic, 0

    def of(self, count: int, monotonic: float) -> float:
        elapsed, more = monotonic - self._at, count - self._count
        self._at, self._count = monotonic, count
        return round(more / elapsed, 2) if elapsed > 0 else 0.0


def _bundle_path(config: Config) -> Path:
    if config.model.bundle is None:
        raise ConfigError("no bundle", where="model.bundle")
    return config.model.bundle


def _schedule(config: Config, train: Callable[[], None], report: Callable[[], None]) -> Any:
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
    scheduler.start()
    return scheduler


def run(path: Path) -> int:
    """Run the daemon until SIGTERM or SIGINT; the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    config = configfile.load(path)
    logs.configure(config.log.level, config.log.format)
    notifier = Notifier()
    daemon = Daemon(config, notifier)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    daemon.start()
    log.info(
        "running",
        device=config.device.id,
        version=__version__,
        pid=os.getpid(),
        model=daemon.server.champion.version,
    )
    ended.wait()
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
