"""What a stream reports of itself: its status, retained states and metrics, with the fields of their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edged.domain.audit_chain import Link
from edged.domain.drift.signals import DriftSignal
from edged.domain.events import Event
from edged.domain.json_fields import JsonObject
from edged.domain.judging.latencies import LatencyPercentiles
from edged.domain.judging.metrics import QualityFigures
from edged.domain.stream.anomaly import AlarmFigures
from edged.domain.training.guards import TrainingPause
from edged.domain.training.message import Message, SparseMessage
from edged.domain.training.trainer_messages import RunProgress
from edged.host.vitals import BoardVitals, Vitals
from edged.storage.journal.journal import RunRecord
from edged.storage.journal.last_run import read_status
from edged.storage.outbox.tables import OutboxBacklog

PACE_SECONDS = 3600.0


@dataclass(frozen=True)
class Report:
    """What was published: an event, a retained state or metrics.

    `topic` is below the device's own, such as `events` or `state/model`; `ts` when it was, in Unix seconds.
    `seq` and `boot`, the number of the daemon's start, say in which order; None of a state, which needs none.
    """

    topic: str
    message: Message
    ts: float
    seq: int | None = None
    boot: int | None = None

    @property
    def event(self) -> Event | None:
        """The event that is reported; None of other reports."""
        return self.message if isinstance(self.message, Event) else None

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        event = {"event": self.message.name} if isinstance(self.message, Event) else {}
        stamp = {} if self.seq is None else {"ts": self.ts, "seq": self.seq, "boot": self.boot}
        return {**event, **stamp, **self.message.to_json()}


# ---- what several of them hold -----------------------------------------------------------------


@dataclass(frozen=True)
class Health(Message):
    """Health of a stream or device; `state` is `ok`, or that of its status."""

    state: str
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, state: str, problem: str | None) -> Health:
        """Return the health of what has this state in its status: `ok` for `online`.

        >>> Health.of("degraded", "the disk is full")
        Health(state='degraded', reasons=('the disk is full',))
        """
        return cls("ok" if state == "online" else state, (problem,) if problem else ())


@dataclass(frozen=True)
class FlashPace(Message):
    """Bytes written to flash since startup: in total, per sample, and per day at this rate."""

    written: int | None = None
    per_sample: float | None = None
    per_day: int | None = None

    @classmethod
    def of(cls, written: int | None, samples: int, seconds: float) -> FlashPace:
        """Measure the pace; the kernel does not tell what is `written` where that is None.

        In the first hour `per_day` is None: a start writes more than later hours, and has no training.

        >>> FlashPace.of(1000, 10, 60.0)
        FlashPace(written=1000, per_sample=100.0, per_day=None)
        >>> FlashPace.of(1000, 0, 7200.0)
        FlashPace(written=1000, per_sample=None, per_day=12000)
        """
        if written is None:
            return cls()
        sample = round(written / samples, 1) if samples else None
        return cls(written, sample, None if seconds < PACE_SECONDS else round(written / seconds * 86400))


@dataclass(frozen=True)
class LastRun(Message):
    """The newest run that has ended, at `ended` (Unix seconds)."""

    run: int
    trigger: str
    ended: float | None = None
    outcome: str | None = None

    @classmethod
    def from_json(cls, values: object) -> LastRun:
        """Read what `to_json` gives, or a record of the registry, where `run` is `id`."""
        given = values if isinstance(values, dict) else {}
        return super().from_json({"run": given.get("id"), **given})


@dataclass(frozen=True)
class WindowCounts(Message):
    """Counters of windowing since startup."""

    cut: int
    gaps: int
    out_of_order: int
    forgotten: int


# ---- the status --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelStatus(Message):
    """The model that serves, and what it lacks before its answers say anything; no version: there is none."""

    version: int | None = None
    since: float | None = None
    parent: int | None = None
    pinned: bool = False
    quality: QualityFigures | None = None
    missing: str | None = None


@dataclass(frozen=True)
class DriftStatus(Message):
    """Number of drift signals, and the newest."""

    signals: int
    last: DriftSignal | None


@dataclass(frozen=True)
class TrainingStatus(Message):
    """The newest run, the present one, what the next one waits for, and what the newest labels did."""

    runs: int = 0
    last: LastRun | RunRecord | None = None
    progress: RunProgress | None = None
    paused: TrainingPause | None = None
    waiting_for: tuple[str, ...] = ()
    summary: str | None = None
    summary_ts: float | None = None


@dataclass(frozen=True, kw_only=True)
class StreamStatus(Message):
    """The summary of `edged status` and `request/status`; of whatever version of edged where it was read."""

    state: str = ""
    problem: str | None = None
    health: Health = Health("", ())
    on_hold: Sequence[str] = ()
    ts: float | None = None
    uptime_s: float = 0.0
    version: str = ""
    boot: int = 0
    samples: int = 0
    labels: int = 0
    quarantined: int = 0
    evicted: int = 0
    model: ModelStatus = ModelStatus()
    drift: DriftStatus | None = None
    stuck: int | None = None
    training: TrainingStatus = TrainingStatus()
    outbox: OutboxBacklog = field(default_factory=OutboxBacklog)
    engine: str = ""
    host: BoardVitals | None = None
    flash: FlashPace | None = None
    audit: Link | None = None

    def line(self) -> StreamLine:
        """Return what is said of the stream beside others."""
        model, training = self.model, self.training
        return StreamLine(
            self.state,
            self.problem,
            self.samples,
            self.labels,
            model.version,
            model.quality,
            training.runs,
            self.on_hold,
        )


@dataclass(frozen=True, kw_only=True)
class LocalStatus(StreamStatus):
    """A status as the state directory has it; `pid` is the process of a running daemon.

    `told_at` is when the daemon stored it, in seconds of the monotonic clock.
    """

    pid: int | None = None
    told_at: float | None = None

    def to_json(self) -> JsonObject:
        """Return the fields that `edged status` prints."""
        return self.without("told_at")

    @classmethod
    def of(cls, state: Path) -> LocalStatus:
        """Read the newest of a state directory; it says nothing where there is none."""
        return read_status(state, cls)


@dataclass(frozen=True)
class StreamLine(SparseMessage):
    """What a device says of one of its streams; with its figures in the status, without them in the state."""

    state: str
    problem: str | None
    samples: int | None = None
    labels: int | None = None
    model: int | None = None
    quality: QualityFigures | None = None
    runs: int | None = None
    on_hold: Sequence[str] | None = None


@dataclass(frozen=True)
class StreamsState(Message):
    """The retained state `streams` of a device with several."""

    streams: Mapping[str, StreamLine]


@dataclass(frozen=True)
class DeviceStatus(Message):
    """The status of a device with several streams."""

    state: str
    problem: str | None
    health: Health
    ts: float
    uptime_s: float
    version: str
    boot: int
    streams: Mapping[str, StreamLine]


# ---- retained states ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelState(Message):
    """The retained state `model`; `metrics` are the figures, by name, that the registry has of it."""

    version: int
    since: float | None
    parent: int | None
    source: str
    metrics: Mapping[str, float | None]
    pinned: bool
    on_hold: bool
    missing: str | None


@dataclass(frozen=True)
class QualityState(Message):
    """The retained state `quality`: the model's version beside its `figures`, as far as they are shown."""

    version: int
    figures: QualityFigures

    @classmethod
    def of(cls, version: int, live: QualityFigures) -> QualityState:
        """Return the state, which is equal where the same is shown: it is published where it has changed."""
        mean = None if live.mean is None else round(live.mean, 4)
        return cls(version, QualityFigures(mean, live.labelled, None, live.of_classes))

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        live = self.figures
        return {"version": self.version, live.name: live.mean, "labelled": live.labelled}


@dataclass(frozen=True)
class TrainingState(Message):
    """The retained state `training`."""

    engine: str
    running: bool
    runs: int
    failures: int
    paused: TrainingPause | None
    on_hold: bool
    last: LastRun | None
    promotions: int
    rejections: int
    rollbacks: int
    waiting_for: tuple[str, ...]
    summary: str | None
    summary_ts: float | None


@dataclass(frozen=True)
class DriftState(DriftStatus):
    """The retained state `drift`: also the newest signal of the inputs."""

    inputs: DriftSignal | None


@dataclass(frozen=True)
class BufferState(Message):
    """The retained state `buffer`."""

    samples: int
    rows: int
    bytes: int
    evicted: int
    problem: str | None
    windows: WindowCounts | None
    outbox: OutboxBacklog


@dataclass(frozen=True)
class RetainedStates:
    """The retained states of a stream; a field is the last level of its topic."""

    model: ModelState
    quality: QualityState
    health: Health
    training: TrainingState
    drift: DriftState
    buffer: BufferState


# ---- metrics -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class IngestMetrics(Message):
    """What has arrived, and what became of it."""

    samples: int
    per_s: float
    lag_s: float | None
    waiting: int
    redelivered: int
    failed_commits: int
    flooded: int
    overrun: int
    skewed: int
    stuck: int
    implausible: int
    contradicted: int
    windows: WindowCounts | None


@dataclass(frozen=True)
class BufferMetrics(Message):
    """What the sample log holds, and what it had to evict."""

    rows: int
    bytes: int
    evicted: int


@dataclass(frozen=True)
class TrainingMetrics(Message):
    """Runs ever begun, failures since the last good one, the present run, and `new` labels for the next."""

    runs: int
    failures: int
    running: RunProgress | None
    new: int


@dataclass(frozen=True)
class LabelMetrics(Message):
    """Labels, their share of all samples, their delay, and how many were asked for."""

    count: int
    share: float | None
    delay_samples: int | None
    requested: int


@dataclass(frozen=True)
class RecoveryMetrics(Message):
    """Why the daemon started, and what it had to repair or to pass over."""

    boot_reason: str
    repaired: int
    damaged_checkpoints: int
    damaged_models: int


@dataclass(frozen=True)
class StreamMetrics(Message):
    """Counters and gauges of a stream, as the topic `metrics` has them."""

    uptime_s: float
    problem: str | None
    ingest: IngestMetrics
    buffer: BufferMetrics
    quarantine: int
    training: TrainingMetrics
    model: int
    live: QualityFigures
    anomaly: AlarmFigures | None
    labels: LabelMetrics
    predictions: int
    latency: LatencyPercentiles
    outbox: OutboxBacklog
    audit: Link | None
    commands: Mapping[str, int]
    recovery: RecoveryMetrics
    host: Vitals
    flash: FlashPace
