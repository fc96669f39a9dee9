"""What masks, signatures and seals cost the coordinator of a fleet, over mosquitto on this machine.

`masks` rows: devices that send vectors of `numbers` numbers under masks; `silent` of them fall silent after
they have shared their keys, so that their masks must be found from shares. The devices run in this process,
the coordinator in one of its own: `cpu` is its processor time for the round, `rss_mb` the most that it has
had in memory, `unmask` the seconds from the last answer to the model, `device_ms` what one device computes.
`error` is the largest difference to the plain sum. `sealed` rows: two fleets, one of plain updates of 16,966
parameters as int8, one whose updates are sealed, and whose rounds and receipts are signed. Their rounds go in
turn. The updates are made before the clock starts, as each device makes its own (`seal_ms` is what one device
takes to seal it); `plain` and `sealed` are the median seconds from the first update sent to the model told,
`ratio` is the median of the ratios of neighbours, `cpu_ratio` that of the coordinator's processor time.

`python benchmarks/masks.py [--devices N] [--width W] [--rounds R] [--json] [--out FILE]`
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from output import finish, options, pairs
from process_usage import peak_mb, processor_seconds
from safetensors.numpy import save_file

from edged import logs
from edged.workbench.demo.broker import Mosquitto, free_port

if TYPE_CHECKING:
    from edged.domain.federated.messages import RoundAnnouncement
    from edged.mqtt.client.message import ReceivedMessage

ROOT = Path(__file__).parents[1]
CLASSES, SILENT = 12, 0.3
Row = dict[str, Any]


class Crowd:
    """Devices that take part in one round under masks, over one connection."""

    def __init__(self, port: int, names: list[str], size: int) -> None:
        from edged.config import MqttConfig
        from edged.domain.federated.messages import FleetTopics
        from edged.mqtt.client.session import Session
        from tests.fleet.senders import FLEET

        self.topics, self.names, self.size = FleetTopics(FLEET), names, size
        self._queue: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
        config = MqttConfig(host="127.0.0.1", port=port)
        self._session = Session(config, client_id="crowd", clean=True, backlog=200_000)
        filters = [self.topics.round, self.topics.peers("+", "+", "+")]
        self._session.subscribe(filters, 1, self._heard)
        self._session.start()
        if not self._session.wait_ready(20):
            raise TimeoutError("no broker")

    def _heard(self, delivery: ReceivedMessage) -> None:
        self._session.ack([delivery])
        self._queue.put(delivery)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        while not self._session.publish(topic, payload, qos=1, retain=retain):
            time.sleep(0.01)

    def next(self) -> ReceivedMessage:
        return self._queue.get(timeout=600)

    def round(self, state: str) -> RoundAnnouncement:
        """Wait for a round in this state."""
        from edged.domain.federated.messages import RoundAnnouncement

        while True:
            delivery = self.next()
            if delivery.topic == self.topics.round:
                told = RoundAnnouncement.read(delivery.payload)
                if told.state == state:
                    return told

    def states(self) -> None:
        from edged.domain.federated.messages import DeviceState

        for name in self.names:
            state = DeviceState(name, time.time(), "f00", "1", 1000, True, "", True, True, True, 0)
            self.publish(self.topics.state(name), state.payload(), retain=True)

    def close(self) -> None:
        self._session.stop(1.0)


def vector_of(name: str, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What a device sends: the sums of a few hundred samples."""
    from edged.domain.federated.head_statistics import HeadStatistics

    rng = np.random.default_rng(int(name[1:]))
    rows = rng.normal(size=(200, size)).astype(np.float32)
    return HeadStatistics.of(rows, rng.integers(0, CLASSES, 200), CLASSES).vector()


def masked(devices: int, width: int) -> Row:
    """One round of statistics under masks."""
    from edged.device.fleet_member.masked_rounds import RoundMasks
    from edged.domain.federated.head_statistics import length
    from edged.domain.federated.mask_messages import JOIN, ROSTER, SHARES, UNMASK
    from edged.domain.federated.messages import UpdateHeader
    from edged.fleet.coordinator.control import instruct
    from edged.mqtt import weight_encoding
    from edged.mqtt.update_encoding import pack_masked

    names = [f"d{n}" for n in range(devices)]
    surviving = set(np.random.default_rng(1).permutation(names)[round(SILENT * devices) :].tolist())
    with tempfile.TemporaryDirectory(prefix="edged-masks-") as folder:
        model = {"w": np.zeros((CLASSES, width), np.float32), "b": np.zeros(CLASSES, np.float32)}
        broker, process = started(
            Path(folder), model,
            round={"kind": "statistics", "devices": devices, "over": 1.0, "quorum": 0.6, "deadline": "1h",
                   "window": 0, "rounds": 1},
            statistics={"weight": "w", "bias": "b"}, masks={"enabled": True, "wait": "30min"},
        )  # fmt: skip
        crowd = Crowd(broker.port, names, width)
        crowd.states()
        told, began = crowd.round("open"), time.perf_counter()
        masks, sent, answered, used = {}, 0, 0, time.process_time()
        total = np.zeros(length(width, CLASSES))
        for name in names:
            masks[name] = RoundMasks(name, told.id)
            crowd.publish(crowd.topics.mask(1, name, JOIN), masks[name].join())
        last = began
        while True:
            delivery = crowd.next()
            if delivery.topic == crowd.topics.round:
                break
            *_, name, step = delivery.topic.split("/")
            if step == ROSTER:
                answer = masks[name].share(delivery.payload)
                crowd.publish(crowd.topics.mask(1, name, SHARES), answer)
            elif step == SHARES and name in surviving:
                masks[name].hold(delivery.payload)
                vector = vector_of(name, width)
                total, blob = total + vector, pack_masked(masks[name].masked(vector))
                line = UpdateHeader(name, 1, told.id, told.base.hash, 1, None, 0.0, len(blob), "0" * 64)
                for topic, payload in line.messages(crowd.topics, blob):
                    crowd.publish(topic, payload)
                sent += 1
                if sent == len(surviving):
                    wait_for_updates(Path(folder), sent)
                    instruct(Path(folder) / "state", "skip", (1, "open"))
            elif step == UNMASK:
                crowd.publish(crowd.topics.mask(1, name, UNMASK), masks[name].unmask(delivery.payload))
                answered += 1
                last = time.perf_counter()
        ended, own = time.perf_counter(), time.process_time() - used
        row_cpu, peak = processor_seconds(process.pid), peak_mb(process.pid)
        process.wait(60)
        crowd.close()
        broker.stop()
        made = max((Path(folder) / "state" / "models").iterdir(), key=lambda path: path.stat().st_mtime)
        found = weight_encoding.unpack((made / weight_encoding.FILE).read_bytes())[0]
    return {
        "what": "masks", "devices": devices, "silent": devices - len(surviving), "numbers": len(vector),
        "bytes": len(blob), "cpu": round(row_cpu, 1), "unmask": round(ended - last, 1),
        "seconds": round(ended - began, 1), "rss_mb": round(peak, 1),
        "device_ms": round(1000 * own / devices, 1), "error": error_of(found, total, width),
    }  # fmt: skip


def error_of(found: dict[str, Any], total: Any, width: int) -> float:
    """Largest difference of a parameter to that from the plain sum."""
    from edged.domain.federated.head_statistics import HeadStatistics

    weight, bias = HeadStatistics.from_vector(total, width, CLASSES).solved(10.0, 10.0)
    return float(max(np.abs(found["w"] - weight).max(), np.abs(found["b"] - bias).max()))


def wait_for_updates(folder: Path, count: int) -> None:
    """Until the coordinator has made so many durable."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.status import status_of

    while status_of(load(folder / "fleet.yaml")).status.updates < count:
        time.sleep(0.2)


def started(
    folder: Path, model: dict[str, Any], **sections: Any
) -> tuple[Mosquitto, subprocess.Popen[bytes]]:
    """A broker, and a coordinator in a process."""
    from tests.fleet.senders import FLEET

    broker = Mosquitto(folder, free_port())
    broker.start()
    save_file(model, folder / "model.safetensors")
    values = {
        "fleet": FLEET, "model": "model.safetensors", "bundle": "f00", "dir": "state",
        "gate": {"evaluate": False}, "mqtt": {"host": "127.0.0.1", "port": broker.port},
        "log": {"level": "warning"},
    } | sections  # fmt: skip
    (folder / "fleet.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [sys.executable, "-m", "edged", "fleet", "run", str(folder / "fleet.yaml")]
    return broker, subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})


class Fleet:
    """A coordinator whose rounds are plain, or signed and sealed, and the devices that send to it."""

    def __init__(self, folder: Path, devices: int, *, secret: bool) -> None:
        from fleet import SHAPES, blobs_of

        from edged.domain.federated.messages import FleetTopics
        from edged.signing import Sealer, Unsealer, new_pair
        from tests.fleet.senders import FLEET, Senders, base_weights

        folder.mkdir()
        self._blobs, self._topics = blobs_of(SHAPES), FleetTopics(FLEET)
        self._names = [f"d{n}" for n in range(devices)]
        self._sealers: dict[str, Sealer] = {}
        sections: dict[str, Any] = {
            "round": {"devices": devices, "window": 0, "every": "1s"}, "choose": {"everyone": True},
            "train": {"clip_norm": 2.0},
        }  # fmt: skip
        if secret:
            new_pair(folder / "fleet.key")
            sections["key"] = "fleet.key"
            public = Unsealer(folder / "fleet.key").public
            self._sealers = {name: Sealer(public) for name in self._names}
        self.broker, self.process = started(folder, base_weights(SHAPES), **sections)
        self._made: dict[str, list[tuple[str, bytes]]] = {}
        self.senders = Senders(
            self.broker.port, self._names, messages=lambda _, device: self._made[device], resend=60.0,
            connections=8, hold=self._names,
        )  # fmt: skip
        self.number = 0
        self.seal_seconds = 0.0

    def _message(self, told: RoundAnnouncement, device: str) -> list[tuple[str, bytes]]:
        from edged.domain.federated.messages import UpdateHeader

        blob = self._blobs[int(device[1:]) % len(self._blobs)]
        line = UpdateHeader(device, told.round, told.id, told.base.hash, 100, 0.5, 1.0, len(blob), "0" * 64)
        return list(line.messages(self._topics, blob))

    def round(self) -> tuple[float, float]:
        """Seconds of the next round from the first update sent, and the coordinator's processor time."""
        self.number += 1
        told = self.senders.wait_state("open", self.number, 120)
        self._made = {name: self._message(told, name) for name in self._names}
        began = time.perf_counter()
        for name, sealer in self._sealers.items():
            self._made[name] = [(t, sealer.seal(p, t.encode())) for t, p in self._made[name]]
        self.seal_seconds = (time.perf_counter() - began) / len(self._names)
        began, used = time.perf_counter(), processor_seconds(self.process.pid)
        self.senders.release()
        self.senders.wait_state("done", self.number, 120)
        took = time.perf_counter() - began, processor_seconds(self.process.pid) - used
        self.senders.hold()
        return took

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.senders.close()
        self.broker.stop()


def sealed(devices: int, rounds: int) -> Row:
    """Plain rounds and sealed ones, in turn; the first of each is left out."""
    with tempfile.TemporaryDirectory(prefix="edged-sealed-") as folder:
        fleets = [Fleet(Path(folder) / str(secret), devices, secret=secret) for secret in (False, True)]
        times = np.array([[fleet.round() for fleet in fleets] for _ in range(rounds + 1)])[1:]
        for fleet in fleets:
            fleet.close()
    (plain, _), (secret, cpu) = np.median(times, axis=0)
    ratio, cpu_ratio = np.median(times[:, 1] / times[:, 0], axis=0)
    return {
        "what": "sealed", "devices": devices, "rounds": rounds, "plain": round(float(plain), 3),
        "sealed": round(float(secret), 3), "ratio": round(float(ratio), 3), "cpu": round(float(cpu), 3),
        "cpu_ratio": round(float(cpu_ratio), 3), "seal_ms": round(1000 * fleets[1].seal_seconds, 3),
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--width", type=int, default=192, help="inputs of the layer")
    parser.add_argument("--rounds", type=int, default=20, help="of each kind")
    args = parser.parse_args()
    logs.configure("warning")
    rows = []
    for measure, number in ((masked, args.width), (sealed, args.rounds)):
        rows.append(measure(args.devices, number))
        sys.stderr.write(f"{pairs(rows[-1])}\n")  # the next one takes minutes
    finish("masks", rows, args)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
