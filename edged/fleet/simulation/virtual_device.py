"""Virtual devices: the rows and the model of each, what it does in rounds, and all of them on a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edged import __version__
from edged.clock import SystemClock
from edged.config import FleetConfig, MqttConfig
from edged.device.fleet_member.member import Member
from edged.device.fleet_member.mqtt_transport import MqttTransport
from edged.device.fleet_member.protocols import Condition
from edged.domain.federated.messages import FleetTopics
from edged.domain.federated.participation import MembershipRecord
from edged.domain.federated.personal_layers import fitting, only
from edged.domain.federated.round_orders import FleetModelResult, TrainRound
from edged.domain.lean_dataclasses import dataclass
from edged.domain.training.weight_deltas import fingerprint
from edged.domain.training.weight_mixing import SHARES, best_share, mixed
from edged.fleet.simulation.partition import three_parts
from edged.fleet.simulation.shared import Unthrottled
from edged.mqtt.client.session import Session
from edged.mqtt.update_encoding import fleet_model
from edged.storage.models.sent_updates import PERSONAL, ROUNDS, SentUpdates
from edged.trainer.fleet_training import RoundTrainer
from edged.trainer.fleet_update import FleetUpdateTrainer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from edged.domain.events import Event
    from edged.domain.federated.messages import Quality, RoundAnnouncement
    from edged.domain.federated.round_orders import RoundResult
    from edged.domain.training.weight_deltas import Coded
    from edged.fleet.simulation.shared import SharedSetup
    from edged.trainer.fleet_training import RoundContribution

    Weights = Mapping[str, NDArray[np.float32]]

Attack = Literal["flip", "scale", "noise"]

LARGEST_MODEL = 1 << 30
SCALED = 10.0
RESEND = 20.0


@dataclass
class ModelReport:
    """What a device found of the fleet's model of a round, on rows that nothing was chosen by."""

    model: str
    share: float | None
    alone: Quality
    mixed: Quality


@dataclass
class DeviceLog:
    """What a device has done, for the report."""

    models: list[ModelReport] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    """Bytes of its messages, by round, sent again or not."""


class MaliciousDevice(RoundTrainer):
    """A device that does harm: its updates point the other way or anywhere, or are far too large."""

    def __init__(self, attack: Attack, *parts: Any) -> None:
        super().__init__(*parts)
        self._attack = attack
        self._factor = np.float32({"flip": -1.0, "scale": SCALED, "noise": 1.0}[attack])

    def train_round(self, *args: Any, rng: np.random.Generator, **kwargs: Any) -> RoundContribution:
        """Train as other devices do, then falsify the update."""
        made = super().train_round(*args, rng=rng, **kwargs)
        coded = {name: self._falsified(part, rng) for name, part in made.coded.items()}
        return replace(made, coded=coded, norm=made.norm * abs(float(self._factor)))

    def _falsified(self, part: Coded, rng: np.random.Generator) -> Coded:
        if self._attack == "noise":  # as large as it was, in another direction
            signs = rng.choice(np.array([-1, 1], part.values.dtype), part.values.shape)
            return replace(part, values=part.values * signs)
        if part.scale is None:
            return replace(part, values=part.values * self._factor)
        return replace(part, scale=np.asarray(part.scale * self._factor, np.float32))


class VirtualDevice:
    """The `RoundWork` of a simulated device; between rounds it learns for itself from its own rows.

    `folder` keeps what must survive, `bench` is shared with the others, `rows` are of the recording, `seed`
    of what it learns, and `attack` is what it does to its updates, where it does harm.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        bench: SharedSetup,
        rows: NDArray[np.int64],
        *,
        seed: int,
        attack: Attack | None = None,
    ) -> None:
        self.name, self.folder, self.log, self.attack = name, folder, DeviceLog(), attack
        self._bench, self._seed = bench, seed
        self.learned, self.chosen_by, self.kept = three_parts(rows)
        self._sent = SentUpdates(folder, ROUNDS)
        self._data = bench.data(self.learned, self.chosen_by, bench.initial())
        parts = (bench.task, bench.engines, self._data, Unthrottled())
        trainer = RoundTrainer(*parts) if attack is None else MaliciousDevice(attack, *parts)
        self._part = FleetUpdateTrainer(name, folder, trainer, self._data, LARGEST_MODEL, seed=seed)

    # ---- what its member asks of it ----------------------------------------------------------

    def why_not(self) -> str:
        """Return no reason: it can always train."""
        return ""

    def new_samples(self, consumed: int) -> int:
        """Return how many rows it has, all from the start."""
        return max(0, len(self.learned) - consumed)

    def bundle(self) -> str:
        """Fingerprint of the bundle that it trains."""
        return self._bench.bundle.fingerprint

    def state(self) -> Condition:
        """Return its state, which is always good."""
        return Condition(version=__version__, idle=True, charged=True, cool=True)

    def train(self, announced: RoundAnnouncement, model: Path) -> RoundResult:
        """Train in the round and store an update."""
        return self._part.contribute(TrainRound(announced.round, announced, model, seconds=3600.0))

    def evaluate(
        self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None
    ) -> FleetModelResult:
        """Mix the fleet's model with its own, note what that gives, and learn on by itself."""
        patterns = announced.config.personal
        other = self._fitting(model, announced.base.hash, patterns)
        tried = {share: self._ask(mixed(self._data.own, other, share)) for share in SHARES}
        share = best_share({share: found[0].loss for share, found in tried.items()})
        best = 0.0 if share is None else share
        before = None if standing is None else self._ask(self._fitting(standing[1], standing[0], patterns))[0]
        self.log.models.append(ModelReport(announced.base.hash, share, tried[1.0][1], tried[best][1]))
        self._data.own = mixed(self._data.own, other, best)
        serves = fingerprint(self._data.own) == announced.base.hash
        self._data.own = self._bench.trained(
            self._data.own, self.learned, announced.config, self._seed + announced.round
        )
        return FleetModelResult(
            run=announced.round,
            share=share,
            samples_judged=len(self.chosen_by),
            before=tried[0.0][0],
            model=tried[1.0][0],
            standing=before,
            mixed=tried[best][0],
            taken=best > 0.0 or serves,
            reason="" if best > 0.0 else "the device's own weights do better on its holdout",
        )

    # ---- its own -----------------------------------------------------------------------------

    def _ask(self, weights: Weights) -> list[Quality]:
        return self._bench.evaluate(weights, self.folder / "asked.onnx", self.chosen_by, self.kept)

    def _fitting(self, model: Path, digest: str, patterns: tuple[str, ...]) -> Weights:
        last = self._sent.newest()
        trained = {} if last is None else only(last.held(PERSONAL), patterns)
        shared = fleet_model(model, digest, LARGEST_MODEL)
        return fitting(shared, {**self._data.own, **trained}, self._bench.bundle.trainable, patterns)


class CountingTransport(MqttTransport):
    """A device's connection that counts the bytes of its updates, by round."""

    def __init__(self, session: Session, topics: FleetTopics, sent: dict[int, int]) -> None:
        super().__init__(session)
        self._up, self._sent = f"{topics.base}/up/", sent

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message at QoS 1; return whether the session accepted it."""
        if topic.startswith(self._up):
            number = int(topic.removeprefix(self._up).split("/")[0])
            self._sent[number] = self._sent.get(number, 0) + len(payload)
        return super().publish(topic, payload, retain=retain)


class PooledHost:
    """The `MemberHost` of a virtual device: work runs on a thread pool, the record stays in memory."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.record = MembershipRecord()

    def store(self, record: MembershipRecord) -> None:
        """Keep the membership record in memory."""
        self.record = record

    def between_runs(self, job: Callable[[], None]) -> None:
        """Call `job` on a thread of the pool: there are no other training runs."""
        self._pool.submit(job)

    def event(self, event: Event) -> None:
        """Ignore the event: the simulation reports what devices measure."""


class DevicePool:
    """Virtual devices that take part in a fleet while the context lasts; `workers` train at a time."""

    def __init__(
        self, devices: Sequence[VirtualDevice], broker: tuple[str, int], fleet: str, workers: int
    ) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="hands")
        self._sessions: list[Session] = []
        self._members: list[Member] = []
        host, port = broker
        settings = FleetConfig(name=fleet, resend=RESEND, min_new_samples=0)
        for device in devices:
            self._add(device, MqttConfig(host=host, port=port), settings)

    def _add(self, device: VirtualDevice, mqtt: MqttConfig, config: FleetConfig) -> None:
        topics = FleetTopics(config.name, mqtt.root)
        session = Session(mqtt, client_id=f"edged-sim-{device.name}", clean=True)
        member = Member(
            device.name, config, topics=topics, transport=CountingTransport(session, topics, device.log.sent),
            work=device, host=PooledHost(self._pool), state=device.folder, clock=SystemClock(),
        )  # fmt: skip
        self._sessions.append(session)
        self._members.append(member)

    def __enter__(self) -> Self:
        for member, session in zip(self._members, self._sessions, strict=True):
            member.start()
            session.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for member in self._members:
            member.stop()
        for session in self._sessions:
            session.stop(1.0)
