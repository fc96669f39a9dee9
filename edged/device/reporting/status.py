"""What the daemon says of itself: the status summary, the retained states and the periodic metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edged import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edged.clock import Clock
    from edged.device.events import Extension
    from edged.device.ingest import Ingestor
    from edged.device.learning.scheduler import TrainingScheduler
    from edged.device.outbound.reporter import Reporter
    from edged.device.promotion import Promoter
    from edged.device.serving import Predictor, ServingWorker
    from edged.device.startup.recovery import Recovery
    from edged.host.vitals import VitalsReader
    from edged.mqtt.client.session import Session
    from edged.storage.models.registry import Registry
    from edged.storage.samples.log import SampleLog

PACE_SECONDS = 3600.0


def flash_pace(written: int | None, samples: int, seconds: float) -> dict[str, float | None]:
    """What was written to the disk since the start: bytes, bytes a sample, bytes a day at this pace.

    The first hour says nothing of a day: a start writes more than what follows it, and has no trainings.

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


class StatusCollector:
    """Reads the parts of a running daemon; changes none of them."""

    def __init__(
        self,
        *,
        clock: Clock,
        boot: int,
        samples: SampleLog,
        registry: Registry,
        server: Predictor,
        serving: ServingWorker,
        learner: TrainingScheduler,
        promoter: Promoter,
        ingest: Ingestor,
        session: Session,
        vitals: VitalsReader,
        requested: Callable[[], int],
        outbox: Callable[[], dict[str, Any]],
        recovery: Recovery,
        paused: Callable[[], list[str]],
        commands: Callable[[], dict[str, int]],
        extensions: Sequence[Extension],
    ) -> None:
        self._clock = clock
        self._boot = boot
        self._samples = samples
        self._registry = registry
        self._server = server
        self._serving = serving
        self._learner = learner
        self._promoter = promoter
        self._ingest = ingest
        self._session = session
        self._vitals = vitals
        self._requested = requested
        self._outbox = outbox
        self._recovery = recovery
        self._paused = paused
        self._commands = commands
        self._extensions = extensions
        self._started = clock.monotonic()
        self._rate = _Rate(self._started)
        self._first = samples.counters().samples

    @property
    def problem(self) -> str | None:
        """What keeps the daemon from its work, in one line."""
        if self._ingest.problem:
            return self._ingest.problem
        problems = (extension.problem for extension in self._extensions)
        return self._session.problem or next(filter(None, problems), None)

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._started

    @property
    def paused(self) -> list[str]:
        """Parts that rest by command."""
        return self._paused()

    @property
    def commands(self) -> dict[str, int]:
        """Commands so far, by what became of them."""
        return self._commands()

    @property
    def requested(self) -> int:
        """Labels that people were asked for."""
        return self._requested()

    @property
    def version(self) -> int:
        """Of the model that serves."""
        return self._server.champion.version

    def status(self) -> dict[str, Any]:
        """The summary of `edged status` and `request/status`."""
        counters = self._samples.counters()
        champion, reign = self._server.champion, self._registry.reign()
        record, runs = self._registry.get(champion.version), self._registry.runs(1)
        problem = self.problem
        return {
            "state": "degraded" if problem else "online",
            "problem": problem,
            "on_hold": self._paused(),
            "ts": self._clock.now(),
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
                "quality": self._server.live_quality(),
            },
            "drift": self._drift(),
            "stuck": self._ingest.admission.stuck,
            "training": {
                "runs": self._registry.run_count(),
                "last": asdict(runs[0]) if runs else None,
                "progress": self._progress(),
                "paused": self._learner.setbacks.pause(),
                "waiting_for": list(self._learner.waiting_for),
            },
            "outbox": self._outbox(),
            "engine": self._learner.engine,
            "host": self._vitals.board(),
            "flash": self._flash(counters.samples),
        }

    def flash_bytes(self) -> int | None:
        """What daemon and trainers have written to the disk since the start."""
        return self._vitals.flash_bytes(self._learner.client.pid)

    def _flash(self, samples: int) -> dict[str, float | None]:
        since = self._clock.monotonic() - self._started
        return flash_pace(self.flash_bytes(), samples - self._first, since)

    def new_labelled(self) -> int:
        """Labelled samples that came after the last run, holdout included."""
        return max(0, self._samples.counters().last_seq - self._learner.consumed)

    def states(self, reporter: Reporter) -> None:
        """Publish the retained states that have changed."""
        champion = self._server.champion
        record, reign = self._registry.get(champion.version), self._registry.reign()
        reporter.state(
            "model",
            {
                "version": champion.version,
                "since": reign.ts if reign else None,
                "parent": record.parent,
                "source": record.source,
                "metrics": {name: value for name, value in record.metrics.items() if name != "scale"},
                "pinned": record.pinned,
                "form": self._server.champion.form,
                "on_hold": "serving" in self._paused(),
            },
        )
        reporter.state(
            "training",
            {
                "engine": self._learner.engine,
                "runs": self._registry.run_count(),
                "failures": self._learner.failures,
                "paused": self._learner.setbacks.pause(),
                "on_hold": "training" in self._paused(),
                "last": self._last_run(),
                "promotions": self._promoter.promotions,
                "rejections": self._promoter.rejections,
                "rollbacks": self._promoter.rollbacks,
                "waiting_for": list(self._learner.waiting_for),
            },
        )
        drift, names = self._server.drift, self._server.schema.names
        inputs = None if drift.last_inputs is None else drift.last_inputs.as_dict(names)
        regimes = len(self._promoter.regimes.ended)
        reporter.state("drift", self._drift() | {"inputs": inputs, "regimes": regimes})
        counters = self._samples.counters()
        reporter.state(
            "buffer",
            {
                "rows": counters.rows,
                "bytes": counters.bytes,
                "evicted": counters.evicted,
                "problem": self._ingest.problem,
                "on_hold": "ingest" in self._paused(),
                "windows": self._windows(),
                "outbox": self._outbox(),
            },
        )

    def _drift(self) -> dict[str, Any]:
        """How many signals there were, and the newest."""
        drift, names = self._server.drift, self._server.schema.names
        last = None if drift.last is None else drift.last.as_dict(names)
        return {"signals": drift.signals, "last": last}

    def _progress(self) -> dict[str, Any] | None:
        progress = self._learner.progress
        return None if progress is None else progress.to_json()

    def _last_run(self) -> dict[str, Any] | None:
        """The newest run that has ended, one that goes on left out."""
        ended = [run for run in self._registry.runs(2) if run.ended is not None]
        if not ended:
            return None
        run = ended[0]
        return {"run": run.id, "trigger": run.trigger, "ended": run.ended, "outcome": run.outcome}

    def _windows(self) -> dict[str, int] | None:
        """What has become of readings since the start, where samples are windows of them."""
        windowing = self._ingest.windowing
        if windowing is None:
            return None
        return {
            "cut": windowing.windows,
            "gaps": windowing.gaps,
            "out_of_order": windowing.late,
            "forgotten": windowing.forgotten,
        }

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges of this moment."""
        counters, now = self._samples.counters(), self._clock.monotonic()
        return {
            "uptime_s": round(now - self._started, 1),
            "problem": self.problem,
            "ingest": {
                "samples": counters.samples,
                "per_s": self._rate.of(counters.samples, now),
                "lag_s": self._ingest.lag,
                "waiting": self._ingest.waiting,
                "redelivered": self._ingest.redelivered,
                "failed_commits": self._ingest.failed_commits,
                "flooded": self._ingest.admission.flooded,
                "overrun": self._ingest.overrun,
                "skewed": self._ingest.admission.skewed,
                "stuck": self._ingest.admission.stuck,
                "contradicted": counters.contradicted,
                "windows": self._windows(),
            },
            "buffer": {"rows": counters.rows, "bytes": counters.bytes, "evicted": counters.evicted},
            "quarantine": counters.quarantined,
            "training": {
                "runs": self._registry.run_count(),
                "failures": self._learner.failures,
                "running": self._progress(),
                "new": self.new_labelled(),
            },
            "model": self._server.champion.version,
            "live": self._server.live_quality(),
            "anomaly": None if self._server.anomalies is None else self._server.anomalies.figures(),
            "labels": {
                "count": counters.labels,
                "share": round(counters.labels / counters.samples, 4) if counters.samples else None,
                "delay_samples": self._server.label_delay,
                "requested": self._requested(),
            },
            "predictions": self._server.predictions,
            "latency": self._serving.latencies.percentiles(),
            "outbox": self._outbox(),
            "commands": self._commands(),
            "recovery": {
                "boot_reason": self._recovery.reason,
                "repaired": len(self._recovery.repaired),
                "damaged_checkpoints": len(self._learner.damaged),
                "damaged_models": len(self._promoter.unusable),
            },
            "host": self._vitals.read(self._learner.client.pid).as_dict(),
            "flash": self._flash(counters.samples),
        }


class _Rate:
    """Events a second between two readings of a counter."""

    def __init__(self, monotonic: float) -> None:
        self._at, self._count = monotonic, 0

    def of(self, count: int, monotonic: float) -> float:
        elapsed, more = monotonic - self._at, count - self._count
        self._at, self._count = monotonic, count
        return round(more / elapsed, 2) if elapsed > 0 else 0.0
