"""Events of a device: what people and other programs hear of, without its time and number.

Names and fields are public: `edged.domain.messages.sent` describes them, and they stay in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edged.domain.drift.signals import DriftSignal
from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import Verdict
from edged.domain.stream.anomaly import AlarmChange
from edged.domain.training.message import Message, SparseMessage
from edged.domain.training.training_run import Candidate, JudgedCandidate, RunEnd, RunResult


@dataclass(frozen=True)
class Event(SparseMessage):
    """Base of events; `to_json` gives the fields of the contract."""

    NAME: ClassVar[str]

    @property
    def name(self) -> str:
        """Name in the contract, such as `model_promoted`."""
        return self.NAME


# ---- the device --------------------------------------------------------------------------------


@dataclass(frozen=True)
class DaemonStarted(Event):
    """The daemon serves; `repaired` says what its start had to mend."""

    NAME = "started"
    boot: int
    version: str
    model: int
    boot_reason: str
    repaired: Sequence[str]


@dataclass(frozen=True)
class StreamFailed(Event):
    """One of several streams could not start; the others serve."""

    NAME = "stream_failed"
    stream: str
    problem: str


@dataclass(frozen=True)
class DeviceThrottled(Event):
    """The board has begun (`state` is `start`) or ceased (`end`) to be throttled, after `seconds`."""

    NAME = "device_throttled"
    state: str
    reasons: tuple[str, ...]
    seconds: float | None = None


@dataclass(frozen=True)
class ClockSet(Event):
    """The clock was set by `step_s` seconds; `before` is what it said until then, in Unix seconds."""

    NAME = "clock_set"
    step_s: float
    before: float


# ---- samples, sensors and labels ---------------------------------------------------------------


@dataclass(frozen=True)
class SampleQuarantined(Event):
    """A message was put into quarantine, or stored samples that training cannot use (`offsets`).

    `more` counts messages that were held back since the last such event.
    """

    NAME = "sample_quarantined"
    reason: str
    topic: str | None = None
    detail: str | None = None
    more: int | None = None
    offsets: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SampleImplausible(Event):
    """A value that cannot be; `feature` is a name, or a position where the stream has no names."""

    NAME = "sample_implausible"
    key: str
    feature: str | int
    value: float
    more: int


@dataclass(frozen=True)
class SensorFlooding(Event):
    """A key sends more than it may."""

    NAME = "sensor_flooding"
    more: int
    key: str


@dataclass(frozen=True)
class SensorEvent(Event):
    """What features of a key do: names, or positions where the stream has no names."""

    more: int
    key: str
    features: tuple[str | int, ...]


class SensorStuck(SensorEvent):
    """The features repeat one value."""

    NAME = "sensor_stuck"


class SensorMoves(SensorEvent):
    """The features, which were stuck, change again."""

    NAME = "sensor_moves"


class SensorMissing(SensorEvent):
    """Values of the features stay away."""

    NAME = "sensor_missing"


class SensorBack(SensorEvent):
    """Values of the features arrive again."""

    NAME = "sensor_back"


@dataclass(frozen=True)
class AnomalyAlarm(Event):
    """An alarm of a key has begun or ended."""

    NAME = "anomaly"
    change: AlarmChange

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return self.change.as_dict()


@dataclass(frozen=True)
class DriftDetected(Event):
    """Warning or drift, with the names of the stream's features, where it has any."""

    NAME = "drift_detected"
    signal: DriftSignal

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return self.signal.to_json()


@dataclass(frozen=True)
class LabelRequested(Event):
    """A sample whose label is asked for; `answer` is a class with its confidence, or a value per target."""

    NAME = "label_requested"
    id: str
    key: str
    sample_ts: float
    values: tuple[float, ...]
    model: int
    random: bool
    answer: str | tuple[float, ...]
    confidence: float | None = None
    set: tuple[str, ...] | None = None


# ---- training ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingStarted(Event):
    """A run begins, with this many new samples."""

    NAME = "training_started"
    run: int
    trigger: str
    new: int


@dataclass(frozen=True)
class TrainingFinished(Event):
    """A run has ended, well or not; `result` is None where it has none."""

    NAME = "training_finished"
    end: RunEnd
    result: RunResult | None
    summary: str | None

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        record = (self.result or self.end).record()
        summary = {} if self.summary is None else {"summary": self.summary}
        return {"run": self.end.run, "outcome": self.end.outcome, **record, **summary}


@dataclass(frozen=True, kw_only=True)
class TrainingPaused(Event):
    """Training waits after failures, until somebody acts on the remedy."""

    NAME = "training_paused"
    failures: int
    reason: str
    remedy: str
    since: float
    summary: str


@dataclass(frozen=True)
class TrainingResumed(Event):
    """A run has ended well after a pause."""

    NAME = "training_resumed"
    run: int


@dataclass(frozen=True)
class CheckpointDamaged(Event):
    """A damaged generation was passed over."""

    NAME = "checkpoint_damaged"
    generation: int


# ---- models ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CandidateRejected(Event):
    """The gate has rejected a candidate."""

    NAME = "candidate_rejected"
    judged: JudgedCandidate

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return self.judged.without("promoted")


@dataclass(frozen=True)
class CandidatesRefused(Event):
    """So many (`count`) candidates in a row were rejected for the same cause."""

    NAME = "candidates_refused"
    count: int
    cause: str
    reasons: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class ModelPromoted(Event):
    """Another model serves.

    `candidate` is None for a model that was stored before, `verdict` where somebody has chosen it.
    """

    NAME = "model_promoted"
    version: int
    parent: int
    origin: str
    summary: str
    verdict: Verdict | None = None
    candidate: Candidate | None = None

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        made = self.candidate
        own = {} if made is None else {"run": made.run}
        received = {} if made is None or made.received is None else made.received.to_json()
        judged = {"reasons": [self.origin]} if self.verdict is None else self.verdict.to_json()
        serving = {"version": self.version, "parent": self.parent, "origin": self.origin}
        return {**serving, **own, **received, **judged, "summary": self.summary}


@dataclass(frozen=True)
class ModelRolledBack(Event):
    """The model that served before, or an older one, serves again."""

    NAME = "model_rolled_back"
    before: int
    to: int
    reason: str
    summary: str

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return {"from": self.before, "to": self.to, "reason": self.reason, "summary": self.summary}


@dataclass(frozen=True)
class TransferOutcome(Message):
    """How a transfer has ended; `version` of a model that was judged."""

    transfer: str
    update: str  # fingerprint of what came
    state: str  # `promoted` or `refused`
    reasons: tuple[str, ...] = ()
    version: int | None = None

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        judged = {} if self.version is None else {"version": self.version}
        ended = {"transfer": self.transfer, "update": self.update, "state": self.state}
        return {**ended, **judged, "reasons": [*self.reasons]}


@dataclass(frozen=True)
class TransferInstalled(Event):
    """A transfer of weights, a model or a bundle (`kind`) has ended."""

    NAMES: ClassVar = {"weights": "weights_applied", "model": "model_installed", "bundle": "bundle_installed"}
    kind: str
    outcome: TransferOutcome

    @property
    def name(self) -> str:
        """Name in the contract."""
        return str(self.NAMES[self.kind])

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return self.outcome.to_json()


# ---- the fleet ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetTrained(Event):
    """The device has trained in a round; `bytes` is the size of its update, `norm` that of the step."""

    NAME = "fleet_trained"
    round: int
    samples: int
    steps: int
    bytes: int
    norm: float


@dataclass(frozen=True)
class FleetAccepted(Event):
    """The coordinator has the device's update."""

    NAME = "fleet_accepted"
    round: int
    sendings: int


@dataclass(frozen=True)
class FleetRefused(Event):
    """The coordinator has refused the device's update."""

    NAME = "fleet_refused"
    round: int
    sendings: int
    reason: str


@dataclass(frozen=True)
class FleetDeclined(Event):
    """The device takes no part in a round."""

    NAME = "fleet_declined"
    round: int
    reason: str


@dataclass(frozen=True)
class FleetFailed(Event):
    """A round, or its model, has failed on this device; `round` is None where none is open."""

    NAME = "fleet_failed"
    round: int | None
    reason: str


@dataclass(frozen=True)
class FleetModelJudged(Event):
    """The device has tried the fleet's model: whether it serves that now, and why or why not."""

    NAME = "fleet_model"
    round: int
    model: str
    taken: bool
    reason: str
