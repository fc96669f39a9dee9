"""Collection of what the daemon reports: the status summary, the retained states and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edged import __version__
from edged.clock import Clock
from edged.device.events import Extension, Listener
from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.publisher import OutboundRouter
from edged.device.reports import (
    BufferMetrics,
    BufferState,
    DriftState,
    DriftStatus,
    FlashPace,
    Health,
    IngestMetrics,
    LabelMetrics,
    LastRun,
    LocalStatus,
    ModelState,
    ModelStatus,
    QualityState,
    RecoveryMetrics,
    RetainedStates,
    StreamMetrics,
    StreamStatus,
    TrainingMetrics,
    TrainingState,
    TrainingStatus,
    WindowCounts,
)
from edged.device.settings import Pauses
from edged.device.startup.recovery import Recovery
from edged.domain.audit_chain import Link
from edged.domain.commands.tasks import RunningCommands
from edged.domain.drift.signals import DriftSignal
from edged.domain.events import Event
from edged.domain.judging.metrics import QualityFigures
from edged.domain.training.message import Message
from edged.host.vitals import VitalsReader
from edged.logs import disk_may_refuse, get_logger
from edged.mqtt.client.session import Session
from edged.storage.journal.journal import RunRecord
from edged.storage.models.records import ModelRecord, Reign
from edged.storage.models.registry import Registry
from edged.storage.samples.reader import Counters

RATE_SECONDS = 0.05  # over which rates are measured at least


@dataclass(frozen=True)
class RegistryFacts:
    """The champion's record, since when it serves, the two newest runs, and what else reports say."""

    record: ModelRecord
    reign: Reign | None
    runs: tuple[RunRecord, ...]  # newest first
    run_count: int
    audit_head: Link | None
    summary: StoredSummary

    @classmethod
    def of(cls, registry: Registry, champion: int) -> RegistryFacts:
        """Read what there is to say while version `champion` serves; StorageError when it has no record."""
        return cls(
            record=registry.get(champion),
            reign=registry.reign(),
            runs=tuple(registry.runs(2)),
            run_count=registry.run_count(),
            audit_head=registry.audit_head(),
            summary=stored_summary(registry),
        )


class StatusCollector:
    """Collects status, retained states and metrics from the parts of a running daemon.

    `recovery` and `boot`: why the daemon started, what was repaired, and the number of the start.
    `extensions`: optional parts, which might report a problem; parts that are added later are included.
    """

    def __init__(
        self,
        pipeline: LivePipeline,
        *,
        session: Session,
        outbound: OutboundRouter,
        vitals: VitalsReader,
        recovery: Recovery,
        boot: int,
        paused: Pauses,
        running: RunningCommands,
        extensions: Sequence[Extension],
    ) -> None:
        self._pipeline = pipeline
        self.session, self.outbound = session, outbound
        self.paused, self.running = paused, running
        self._vitals = vitals
        self._recovery = recovery
        self._boot = boot
        self._extensions = extensions
        self._started = pipeline.clock.monotonic()
        self._rate = _Rate(self._started)
        self._first = pipeline.samples.counters().samples
        self._earlier = LocalStatus.of(pipeline.config.storage.dir).model

    @property
    def problem(self) -> str | None:
        """What prevents the daemon from working, in one line; None if nothing does."""
        if self._pipeline.committer.problem:
            return self._pipeline.committer.problem
        problems = [self.session.problem, *(extension.problem for extension in self._extensions)]
        ingestor = self._pipeline.ingestor
        arriving = ingestor.decoder.problem, ingestor.joiner.problem
        return next(filter(None, [*problems, *arriving, self._pipeline.rollout.problem]), None)

    @property
    def uptime(self) -> float:
        """Seconds since the daemon started."""
        return self._pipeline.clock.monotonic() - self._started

    def status(self) -> StreamStatus:
        """Collect the summary of `edged status` and `request/status`."""
        pipeline, counters, problem = self._pipeline, self._pipeline.samples.counters(), self.problem
        predictor, scheduler = pipeline.predictor, pipeline.scheduler
        stored = RegistryFacts.of(pipeline.registry, predictor.champion.version)
        state = "degraded" if problem else "online"
        return StreamStatus(
            state=state,
            problem=problem,
            health=Health.of(state, problem),
            on_hold=self.paused.names,
            ts=pipeline.clock.now(),
            uptime_s=round(self.uptime, 1),
            version=__version__,
            boot=self._boot,
            samples=counters.samples,
            labels=counters.labels,
            quarantined=counters.quarantined,
            evicted=counters.evicted,
            model=ModelStatus(
                version=stored.record.version,
                since=stored.reign.ts if stored.reign else None,
                parent=stored.record.parent,
                pinned=stored.record.pinned,
                quality=predictor.live_quality(),
                missing=predictor.missing,
            ),
            drift=DriftStatus(predictor.drift.signals, self._named(predictor.drift.last)),
            stuck=pipeline.ingestor.admission.stuck,
            training=TrainingStatus(
                runs=stored.run_count,
                last=stored.runs[0] if stored.runs else None,
                progress=scheduler.progress,
                paused=scheduler.backoff.pause(),
                waiting_for=scheduler.waiting_for,
                summary=stored.summary.summary,
                summary_ts=stored.summary.summary_ts,
            ),
            outbox=self.outbound.outbox(),
            engine=scheduler.engine,
            host=self._vitals.board(),
            flash=self._flash(counters.samples),
            audit=stored.audit_head,
        )

    def flash_bytes(self) -> int | None:
        """Bytes that daemon and trainers have written since startup; None if the kernel does not count."""
        return self._vitals.flash_bytes(self._pipeline.scheduler.client.pid)

    def _flash(self, samples: int) -> FlashPace:
        return FlashPace.of(self.flash_bytes(), samples - self._first, self.uptime)

    def new_labelled(self) -> int:
        """Number of samples labelled since the last run, holdout included."""
        return max(0, self._pipeline.samples.counters().last_seq - self._pipeline.scheduler.consumed)

    def states(self) -> RetainedStates:
        """Collect the retained states."""
        pipeline, champion = self._pipeline, self._pipeline.predictor.champion
        problem, stored = self.problem, RegistryFacts.of(pipeline.registry, champion.version)
        reign, record = stored.reign, stored.record
        return RetainedStates(
            model=ModelState(
                version=champion.version,
                since=reign.ts if reign else None,
                parent=record.parent,
                source=record.source,
                metrics=record.metrics.reported(),
                pinned=record.pinned,
                on_hold="serving" in self.paused.names,
                missing=pipeline.predictor.missing,
            ),
            quality=QualityState.of(champion.version, self._quality()),
            health=Health.of("degraded" if problem else "online", problem),
            training=self._training_state(stored),
            drift=self._drift_state(),
            buffer=self._buffer_state(),
        )

    def _training_state(self, stored: RegistryFacts) -> TrainingState:
        scheduler, models = self._pipeline.scheduler, self._pipeline.models
        ended = [run for run in stored.runs if run.ended is not None]
        return TrainingState(
            engine=scheduler.engine,
            running=scheduler.progress is not None,
            runs=stored.run_count,
            failures=scheduler.backoff.failures,
            paused=scheduler.backoff.pause(),
            on_hold="training" in self.paused.names,
            last=LastRun(ended[0].id, ended[0].trigger, ended[0].ended, ended[0].outcome) if ended else None,
            promotions=models.promotions,
            rejections=models.rejections,
            rollbacks=models.rollbacks,
            waiting_for=scheduler.waiting_for,
            summary=stored.summary.summary,
            summary_ts=stored.summary.summary_ts,
        )

    def _drift_state(self) -> DriftState:
        drift = self._pipeline.predictor.drift
        last, inputs = self._named(drift.last), self._named(drift.last_inputs)
        return DriftState(drift.signals, last, inputs)

    def _buffer_state(self) -> BufferState:
        counters = self._pipeline.samples.counters()
        return BufferState(
            samples=counters.samples,
            rows=counters.rows,
            bytes=counters.bytes,
            evicted=counters.evicted,
            problem=self._pipeline.committer.problem or self._pipeline.ingestor.decoder.problem,
            windows=self._windows(),
            outbox=self.outbound.outbox(),
        )

    def _quality(self) -> QualityFigures:
        """Live quality; that of before the start until there are labels again.

        Errors of values count for the model that made them: the first trained one has another unit.
        """
        predictor, labels = self._pipeline.predictor, self._pipeline.samples.counters().labels
        quality, earlier = predictor.live_quality(), self._earlier
        comparable = earlier.version == predictor.champion.version or predictor.schema.task == "classify"
        if not quality.labelled and labels and comparable:  # without labels they were erased
            return earlier.quality or quality
        return quality

    def _named(self, signal: DriftSignal | None) -> DriftSignal | None:
        """A signal with the names of the stream's features."""
        return None if signal is None else signal.named(self._pipeline.schema.names)

    def _windows(self) -> WindowCounts | None:
        """Counters of windowing since startup; None for a stream without windows."""
        windowing = self._pipeline.ingestor.windowing
        if windowing is None:
            return None
        return WindowCounts(windowing.windows, windowing.gaps, windowing.late, windowing.forgotten)

    def metrics(self) -> StreamMetrics:
        """Collect the current counters and gauges."""
        pipeline, counters, now = self._pipeline, self._pipeline.samples.counters(), self.uptime
        predictor, scheduler = pipeline.predictor, pipeline.scheduler
        host = self._vitals.read(scheduler.client.pid)
        stored = RegistryFacts.of(pipeline.registry, predictor.champion.version)
        return StreamMetrics(
            uptime_s=round(now, 1),
            problem=self.problem,
            ingest=self._ingest(counters),
            buffer=BufferMetrics(counters.rows, counters.bytes, counters.evicted),
            quarantine=counters.quarantined,
            training=TrainingMetrics(
                runs=stored.run_count,
                failures=scheduler.backoff.failures,
                running=scheduler.progress,
                new=self.new_labelled(),
            ),
            model=predictor.champion.version,
            live=predictor.live_quality(),
            anomaly=None if predictor.anomalies is None else predictor.anomalies.figures(),
            labels=LabelMetrics(
                count=counters.labels,
                share=round(counters.labels / counters.samples, 4) if counters.samples else None,
                delay_samples=predictor.label_delay,
                requested=pipeline.requester.requested,
            ),
            predictions=predictor.predictions,
            latency=pipeline.serving.latencies.percentiles(),
            outbox=self.outbound.outbox(),
            audit=stored.audit_head,
            commands=self.running.counts,
            recovery=RecoveryMetrics(
                boot_reason=self._recovery.reason,
                repaired=len(self._recovery.repaired),
                damaged_checkpoints=len(scheduler.damaged),
                damaged_models=len(pipeline.models.unusable),
            ),
            host=host,
            flash=FlashPace.of(host.flash_bytes_written, counters.samples - self._first, now),
        )

    def _ingest(self, counters: Counters) -> IngestMetrics:
        ingestor, committer = self._pipeline.ingestor, self._pipeline.committer
        return IngestMetrics(
            samples=counters.samples,
            per_s=self._rate.of(counters.samples, self._pipeline.clock.monotonic()),
            lag_s=committer.lag,
            waiting=ingestor.waiting,
            redelivered=committer.redelivered,
            failed_commits=committer.failed_commits,
            flooded=ingestor.admission.flooded,
            overrun=ingestor.overrun,
            skewed=ingestor.admission.skewed,
            stuck=ingestor.admission.stuck,
            implausible=ingestor.admission.implausible,
            contradicted=counters.contradicted,
            windows=self._windows(),
        )


class _Rate:
    """Events per second between two readings of a counter, at least `RATE_SECONDS` apart."""

    def __init__(self, monotonic: float) -> None:
        self._at, self._count, self._rate = monotonic, 0, 0.0

    def of(self, count: int, monotonic: float) -> float:
        elapsed, more = monotonic - self._at, count - self._count
        if elapsed >= RATE_SECONDS:
            self._at, self._count, self._rate = monotonic, count, round(more / elapsed, 2)
        return self._rate


log = get_logger("edged.promote")

SUMMARY = "learned"  # name of the registry's value
SUMMARISED = (
    "training_finished", "training_paused", "candidate_rejected", "candidates_refused", "model_promoted",
    "model_rolled_back",
)  # fmt: skip


@dataclass(frozen=True)
class StoredSummary(Message):
    """Summary of the newest event about learning, and when it was (Unix seconds); None before the first."""

    summary: str | None = None
    summary_ts: float | None = None


def stored_summary(registry: Registry) -> StoredSummary:
    """Read the newest summary from the registry."""
    return StoredSummary.from_json(registry.get_value(SUMMARY) or {})


class LearningSummary(Listener):
    """Stores the summary of the newest event about learning in `registry`."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def event(self, event: Event) -> None:
        """Store the summary of an event; if the disk refuses it, the older one stays."""
        summary = event.to_json().get("summary") if event.name in SUMMARISED else None
        if not isinstance(summary, str) or not summary:
            return
        with disk_may_refuse(log, "summary_not_kept"):
            self._registry.set_value(SUMMARY, StoredSummary(summary, self._clock.now()).to_json())
