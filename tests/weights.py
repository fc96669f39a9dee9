"""A device that publishes one update of its weights after the other, and someone who follows them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.clock import SystemClock
from edged.device.outbound.publisher import OutboundRouter
from edged.device.outbound.weight_updates import WeightUpdates
from edged.domain.training.training_run import ModelData
from edged.domain.training.update_manifest import TransferManifest
from edged.engines.model_parameters import base_of
from edged.errors import CorruptError
from edged.mqtt import weight_encoding
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.journal.journal import Sequence
from edged.storage.models.bundle_archive import ActiveBundle, InstalledBundles
from edged.storage.models.registry import Registry
from tests.constants import configured

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage
    from edged.storage.models.bundles import Bundle

    Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

PREFIX = "edged/d/weights/"
PATIENCE = 1.0  # seconds until the same is asked for again


def big_bundle(folder: Path, width: int) -> Bundle:
    """A network with two layers of `width`: 512 make 1.2 MB of float32."""
    from edged.bundles.graph.templates import mlp
    from tests.building import build

    return build(mlp(32, 8, (width, width)), folder, loss="cross_entropy", engine="portable")


class Sender:
    """What the daemon has for weights: registry, updates, outbox and session."""

    def __init__(self, folder: Path, port: int, bundle: Bundle, **section: Any) -> None:
        config = configured(
            {
                "device": {"id": "d"},
                "stream": {"features": 32, "classes": 8},
                "mqtt": {"port": port, "reconnect_max": "1s"},
                "storage": {"dir": folder},
                "outbox": {"max_bytes": "256MiB", "rate": 500},
                "weights": {"every": 0} | section,
            }
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.bundle = folder, bundle
        self.session = Session(config.mqtt, client_id="d")
        self.registry = Registry.open(folder)
        self.updates = WeightUpdates(
            config, ActiveBundle(bundle, InstalledBundles(folder), self.registry, ()), self.registry
        )
        self.publishing = OutboundRouter(
            config, topics=Topics("edged/d"), session=self.session, registry=self.registry,
            updates=self.updates, clock=SystemClock(), boot=self.registry.next_boot(),
            number=Sequence(self.registry),
        )  # fmt: skip
        self._base = base_of(bundle)
        self.weights = self._base.parameters()

    def start(self) -> None:
        """Begin to send."""
        self.publishing.forwarder.start()
        self.session.start()

    def model(self, seed: int, size: float = 0.01) -> int:
        """A new model whose weights have moved a little; its version."""
        rng = np.random.default_rng(seed)
        self.weights = {
            name: value + np.asarray(rng.laplace(0, size, value.shape), np.float32)
            for name, value in self.weights.items()
        }
        staging = self.folder / "candidates" / str(seed)
        staging.mkdir(parents=True)
        (staging / "model.onnx").write_bytes(self._base.with_parameters(self.weights))
        data = ModelData(samples=100, first_offset=1, last_offset=100)
        version = self.registry.add(staging, created=1.0, source="training", data=data).version
        self.registry.prune(10, {version})
        return version

    def newest(self) -> None:
        """Send the newest version again."""
        if self.registry.records():
            self.again(self.registry.records()[-1].version)

    def again(self, version: int, missing: list[int] | None = None) -> None:
        """Do what `weights.get` does: send chunks of an update again."""
        self.publishing.update(self.updates.update(version), missing)

    def stop(self) -> None:
        """As the daemon ends."""
        self.session.stop(2.0)
        self.publishing.forwarder.stop()
        self.registry.close()


class Follower:
    """Puts updates together, and asks again for what did not come."""

    def __init__(self, port: int, sender: Sender) -> None:
        config = configured(
            {
                "device": {"id": "f"},
                "stream": {"features": 1, "classes": 2},
                "mqtt": {"port": port, "reconnect_max": "1s"},
            }
        )
        self._sender = sender
        self._lock = threading.Lock()
        self._chunks: dict[str, bytes] = {}
        self._manifests: dict[int, TransferManifest] = {}
        self._asked: dict[int, float] = {}
        self.order: list[int] = []
        self.held: Weights = {}
        self.damaged = 0
        # A broker that was killed has forgotten us: what it got before we were back, nobody tells us of.
        self._connected = threading.Event()
        self.session = Session(config.mqtt, client_id="follower", listener=self)
        self.session.subscribe([f"{PREFIX}#"], 1, self._receive)
        self.session.start()
        assert self.session.wait_ready(20)

    def online(self) -> None:
        self._connected.set()

    def connection_changed(self) -> None: ...

    def _receive(self, delivery: ReceivedMessage) -> None:
        version, _, part = delivery.topic.removeprefix(PREFIX).partition("/")
        with self._lock:
            if part == "manifest":
                self._manifests[int(version)] = TransferManifest.from_json(json.loads(delivery.payload))
            else:
                self._chunks[f"{version}/{part}"] = delivery.payload
        self.session.ack([delivery])

    def follow(self) -> list[int]:
        """Take over what is whole, in order; ask for what holds it up; the versions so far."""
        if self._connected.is_set() and self.session.wait_ready(0.0):
            self._connected.clear()
            self._sender.newest()
        with self._lock:
            waiting = sorted(v for v in self._manifests if v not in self.order)
        for version in waiting:
            self._take(version)
        return self.order

    def _ask(self, version: int, missing: list[int] | None = None) -> None:
        now = time.monotonic()
        if now - self._asked.get(version, -PATIENCE) >= PATIENCE:
            self._asked[version] = now
            self._sender.again(version, missing)

    def _take(self, version: int) -> None:
        manifest = self._manifests[version]
        names = [f"{version}/{n}" for n in range(len(manifest.chunks))]
        with self._lock:
            chunks = [self._chunks.get(name, b"") for name in names]
        missing = [n for n, chunk in enumerate(chunks) if not chunk]
        if missing:
            self._ask(version, missing)
            return
        try:
            self.held = weight_encoding.received(manifest, b"".join(chunks))
        except CorruptError:
            self.damaged += 1
            raise
        self.order.append(version)
        with self._lock:
            for name in names:
                del self._chunks[name]

    def state(self) -> str:
        """For a test that waits in vain."""
        with self._lock:
            waiting = {v: len(m.chunks) for v, m in self._manifests.items() if v not in self.order}
            return f"order {self.order[-3:]}, manifests {waiting}, chunks {sorted(self._chunks)}"

    def stop(self) -> None:
        """Leave the broker."""
        self.session.stop(1.0)
