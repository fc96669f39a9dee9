"""Collection of what the daemon reports: the status summary, the retained states and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edged import __version__
from edged.device.promotion.summary import stored_summary
from edged.domain.training.message import Message
from edged.storage.journal.journal import AUDIT_HEAD

if TYPE_CHECKING:
    from edged.device.events import Extension
    from edged.device.outbound.publisher import OutboundRouter
    from edged.device.pipeline import LivePipeline
    from edged.device.settings import PausedParts
    from edged.device.startup.recovery import Recovery
    from edged.domain.commands.running import RunningCommands
    from edged.host.vitals import VitalsReader
    from edged.mqtt.client.session import Session

PACE_SECONDS = 3600.0


def flash_pace(written: int | None, samples: int, seconds: float) -> dict[str, float | None]:
    """Return the bytes written to flash since startup: in total, per sample, per day at this rate.

    In the first hour the bytes per day are None: a start writes more than later hours, and has no training.

    >>> flash_pace(1000, 10, 60.0)
    {'written': 1000, 'per_sample': 100.0, 'per_day': None}
    >>> flash_pace(1000, 0, 7200.0)
    {'written': 1000, 'per_sample': None, 'per_day': 12000}
    """
    return {
        "written": written,
        "per_sample": None if written is None or not samples else round(written / samples, 1),
        "per_day": None if written is None or seconds < PACE_SECONDS else round(written / seconds * 86400),
    }


def health(state: str, problem: str | None) -> dict[str, Any]:
    """Return `health` of a status: its `state` is `ok` where the status has `online`.

    >>> health("degraded", "the disk is full")
    {'state': 'degraded', 'reasons': ['the disk is full']}
    """
    return {"state": "ok" if state == "online" else state, "reasons": [problem] if problem else []}


@dataclass(frozen=True)
class LastRun(Message):
    """The newest run that has ended, at `ended` (Unix seconds)."""

    run: int
    trigger: str
    ended: float | None
    outcome: str | None


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
        paused: PausedParts,
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
        earlier = pipeline.registry.get_value("status") or {}
        self._earlier: dict[str, Any] = earlier.get("model") or {}

    @property
    def problem(self) -> str | None:
        """What prevents the daemon from working, in one line; None if nothing does."""
        if self._pipeline.committer.problem:
            return self._pipeline.committer.problem
        problems = [self.session.problem, *(extension.problem for extension in self._extensions)]
        ingestor = self._pipeline.ingestor
        learning = self._pipeline.disputes.problem, self._pipeline.rollout.problem
        arriving = ingestor.decoder.problem, ingestor.joiner.problem
        return next(filter(None, [*problems, *arriving, *learning]), None)

    @property
    def uptime(self) -> float:
        """Seconds since the daemon started."""
        return self._pipeline.clock.monotonic() - self._started

    def status(self) -> dict[str, Any]:
        """Collect the summary of `edged status` and `request/status`."""
        counters = self._pipeline.samples.counters()
        champion, reign = self._pipeline.predictor.champion, self._pipeline.registry.reign()
        record, runs = self._pipeline.registry.get(champion.version), self._pipeline.registry.runs(1)
        problem = self.problem
        return {
            "state": "degraded" if problem else "online",
            "problem": problem,
            "health": health("degraded" if problem else "online", problem),
            "on_hold": self.paused.names,
            "ts": self._pipeline.clock.now(),
            "uptime_s": round(self.uptime, 1),
            "version": __version__,
            "boot": self._boot,
            "samples": counters.samples,
            "labels": counters.labels,
            "quarantined": counters.quarantined,
            "evicted": counters.evicted,
            "model": {
                "version": champion.version,
                "since": reign.ts if reign else None,
                "parent": record.parent,
                "pinned": record.pinned,
                "quality": self._pipeline.predictor.live_quality().to_json(),
                "missing": self._pipeline.predictor.missing,
            },
            "drift": self._drift(),
            "stuck": self._pipeline.ingestor.admission.stuck,
            "training": {
                "runs": self._pipeline.registry.run_count(),
                "last": asdict(runs[0]) if runs else None,
                "progress": _json(self._pipeline.scheduler.progress),
                "paused": _json(self._pipeline.scheduler.backoff.pause()),
                "waiting_for": list(self._pipeline.scheduler.waiting_for),
                **stored_summary(self._pipeline.registry).to_json(),
            },
            "outbox": self.outbound.outbox()._asdict(),
            "engine": self._pipeline.scheduler.engine,
            "host": self._vitals.board(),
            "flash": self._flash(counters.samples),
            "audit": self._pipeline.registry.get_value(AUDIT_HEAD),
            **({} if self._pipeline.keys is None else {"keys": self._pipeline.keys.status()}),
        }

    def flash_bytes(self) -> int | None:
        """Bytes that daemon and trainers have written since startup; None if the kernel does not count."""
        return self._vitals.flash_bytes(self._pipeline.scheduler.client.pid)

    def _flash(self, samples: int) -> dict[str, float | None]:
        since = self._pipeline.clock.monotonic() - self._started
        return flash_pace(self.flash_bytes(), samples - self._first, since)

    def new_labelled(self) -> int:
        """Number of samples labelled since the last run, holdout included."""
        return max(0, self._pipeline.samples.counters().last_seq - self._pipeline.scheduler.consumed)

    def states(self) -> dict[str, dict[str, Any]]:
        """Collect the retained states, by name."""
        predictor, scheduler = self._pipeline.predictor, self._pipeline.scheduler
        models, counters = self._pipeline.models, self._pipeline.samples.counters()
        champion, reign = predictor.champion, self._pipeline.registry.reign()
        record, drift = self._pipeline.registry.get(champion.version), predictor.drift
        inputs = None if drift.last_inputs is None else drift.last_inputs.as_dict(predictor.schema.names)
        return {
            "model": {
                "version": champion.version,
                "since": reign.ts if reign else None,
                "parent": record.parent,
                "source": record.source,
                "metrics": {name: value for name, value in record.metrics.items() if name != "scale"},
                "pinned": record.pinned,
                "form": champion.form,
                "on_hold": "serving" in self.paused.names,
                "missing": predictor.missing,
            },
            "quality": {"version": champion.version, **self._quality()},
            "health": health("degraded" if self.problem else "online", self.problem),
            "training": {
                "engine": scheduler.engine,
                "running": scheduler.progress is not None,
                "runs": self._pipeline.registry.run_count(),
                "failures": scheduler.backoff.failures,
                "paused": _json(scheduler.backoff.pause()),
                "on_hold": "training" in self.paused.names,
                "last": _json(self._last_run()),
                "promotions": models.promotions,
                "rejections": models.rejections,
                "rollbacks": models.rollbacks,
                "waiting_for": list(scheduler.waiting_for),
                **stored_summary(self._pipeline.registry).to_json(),
            },
            "drift": {**self._drift(), "inputs": inputs, "regimes": len(self._pipeline.recall.regimes.ended)},
            "buffer": {
                "samples": counters.samples,
                "rows": counters.rows,
                "bytes": counters.bytes,
                "evicted": counters.evicted,
                "problem": self._pipeline.committer.problem or self._pipeline.ingestor.decoder.problem,
                "on_hold": "ingest" in self.paused.names,
                "windows": self._windows(),
                "outbox": self.outbound.outbox()._asdict(),
            },
        }

    def _quality(self) -> dict[str, Any]:
        """Live quality; that of before the start until there are labels again.

        Errors of values count for the model that made them: the first trained one has another unit.
        """
        predictor, labels = self._pipeline.predictor, self._pipeline.samples.counters().labels
        live, same = (
            predictor.live_quality().to_json(),
            self._earlier.get("version") == predictor.champion.version,
        )
        comparable = same or predictor.schema.task == "classify"
        if not live["labelled"] and labels and comparable:  # without labels they were erased
            live = self._earlier.get("quality") or live
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in live.items()
            if name in ("accuracy", "error", "labelled")
        }

    def _drift(self) -> dict[str, Any]:
        """Number of drift signals, and the newest."""
        drift, names = self._pipeline.predictor.drift, self._pipeline.predictor.schema.names
        last = None if drift.last is None else drift.last.as_dict(names)
        return {"signals": drift.signals, "last": last}

    def _last_run(self) -> LastRun | None:
        """The newest run that has ended; None before the first."""
        ended = [run for run in self._pipeline.registry.runs(2) if run.ended is not None]
        return LastRun(ended[0].id, ended[0].trigger, ended[0].ended, ended[0].outcome) if ended else None

    def _windows(self) -> dict[str, int] | None:
        """Counters of windowing since startup; None for a stream without windows."""
        windowing = self._pipeline.ingestor.windowing
        if windowing is None:
            return None
        return {
            "cut": windowing.windows,
            "gaps": windowing.gaps,
            "out_of_order": windowing.late,
            "forgotten": windowing.forgotten,
        }

    def metrics(self) -> dict[str, Any]:
        """Collect the current counters and gauges."""
        counters, now = self._pipeline.samples.counters(), self._pipeline.clock.monotonic()
        anomalies = self._pipeline.predictor.anomalies
        return {
            "uptime_s": round(now - self._started, 1),
            "problem": self.problem,
            "ingest": {
                "samples": counters.samples,
                "per_s": self._rate.of(counters.samples, now),
                "lag_s": self._pipeline.committer.lag,
                "waiting": self._pipeline.ingestor.waiting,
                "redelivered": self._pipeline.committer.redelivered,
                "failed_commits": self._pipeline.committer.failed_commits,
                "flooded": self._pipeline.ingestor.admission.flooded,
                "overrun": self._pipeline.ingestor.overrun,
                "skewed": self._pipeline.ingestor.admission.skewed,
                "stuck": self._pipeline.ingestor.admission.stuck,
                "implausible": self._pipeline.ingestor.admission.implausible,
                "contradicted": counters.contradicted,
                "windows": self._windows(),
            },
            "buffer": {"rows": counters.rows, "bytes": counters.bytes, "evicted": counters.evicted},
            "quarantine": counters.quarantined,
            "training": {
                "runs": self._pipeline.registry.run_count(),
                "failures": self._pipeline.scheduler.backoff.failures,
                "running": _json(self._pipeline.scheduler.progress),
                "new": self.new_labelled(),
            },
            "model": self._pipeline.predictor.champion.version,
            "live": self._pipeline.predictor.live_quality().to_json(),
            "anomaly": None if anomalies is None else anomalies.figures(),
            "labels": {
                "count": counters.labels,
                "share": round(counters.labels / counters.samples, 4) if counters.samples else None,
                "delay_samples": self._pipeline.predictor.label_delay,
                "requested": self._pipeline.requester.requested,
            },
            "predictions": self._pipeline.predictor.predictions,
            "latency": self._pipeline.serving.latencies.percentiles(),
            "outbox": self.outbound.outbox()._asdict(),
            "audit": self._pipeline.registry.get_value(AUDIT_HEAD),
            "commands": self.running.counts,
            "recovery": {
                "boot_reason": self._recovery.reason,
                "repaired": len(self._recovery.repaired),
                "damaged_checkpoints": len(self._pipeline.scheduler.damaged),
                "damaged_models": len(self._pipeline.models.unusable),
            },
            "host": self._vitals.read(self._pipeline.scheduler.client.pid).as_dict(),
            "flash": self._flash(counters.samples),
        }


class _Rate:
    """Events per second between two readings of a counter."""

    def __init__(self, monotonic: float) -> None:
        self._at, self._count = monotonic, 0

    def of(self, count: int, monotonic: float) -> float:
        elapsed, more = monotonic - self._at, count - self._count
        self._at, self._count = monotonic, count
        return round(more / elapsed, 2) if elapsed > 0 else 0.0


def _json(message: Message | None) -> dict[str, Any] | None:
    return None if message is None else message.to_json()
