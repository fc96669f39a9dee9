"""What a small board needs: memory of daemon and trainer together, under a limit that the kernel keeps.

The simulated plant of the demo is published over a real broker; the daemon and its trainers live in a
control group with a memory limit, as under MemoryMax= of systemd. Needs root, and cgroup v1 or v2 that can be
written. `memory` is the peak of the sum of the proportional set sizes (Pss), `charged` what the kernel
counted, its cache of files included.

`python benchmarks/board.py [--limit MIB] [--config FILE] [--samples N] [--rate R] [--python PATH] [--json]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import yaml
from output import finish, options
from paho.mqtt.enums import CallbackAPIVersion

from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.workbench.demo.broker import EmbeddedBroker
from edged.workbench.demo.plant import CLASSES, FEATURES, Plant

ROOT = Path(__file__).resolve().parents[1]
CGROUPS = Path("/sys/fs/cgroup")
# Files of cgroup v2 and of v1: the limit, the peak, and how often something was ended for want of memory.
V2 = ("memory.max", "memory.peak", "memory.events")
V1 = ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control")
ENTER = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'


@contextmanager
def group(limit: int) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """A control group with `limit` bytes of memory, and the names of its files."""
    one, unified = CGROUPS / "memory", (CGROUPS / "cgroup.controllers").exists()
    folder = (CGROUPS if unified else one) / f"edged-board-{os.getpid()}"
    names = V2 if unified else V1
    folder.mkdir()
    try:
        (folder / names[0]).write_text(str(limit), encoding="ascii")
        if unified:
            with suppress(OSError):
                (folder / "memory.swap.max").write_text("0", encoding="ascii")
        yield folder, names
    finally:
        folder.rmdir()


class Watch:
    """The largest sum of the Pss of the processes in a group, and of each kind of process in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.together, self.daemon, self.trainer = 0, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            found = [_process(pid) for pid in (self._folder / "cgroup.procs").read_text().split()]
            trainer = sum(pss for is_trainer, pss in found if is_trainer)
            daemon = sum(pss for is_trainer, pss in found if not is_trainer)
            self.together = max(self.together, trainer + daemon)
            self.trainer, self.daemon = max(self.trainer, trainer), max(self.daemon, daemon)

    def stop(self) -> None:
        """No more looking."""
        self._stop.set()
        self._thread.join()


def _process(pid: str) -> tuple[bool, int]:
    """Whether it is a trainer, and its Pss in bytes."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False, 0
    line = next((line for line in rollup.splitlines() if line.startswith("Pss:")), "Pss: 0")
    return b"edged.trainer" in command, int(line.split()[1]) * 1024


class Client:
    """Publishes the plant, and counts what comes of it."""

    def __init__(self, port: int) -> None:
        self.predictions, self.trainings, self.swaps = 0, 0, 0
        self.online = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.max_queued_messages_set(0)
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([(f"edged/board/{topic}", 1) for topic in ("status", "predictions", "events")])
        self._client.loop_start()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        told: dict[str, Any] = json.loads(message.payload)
        if message.topic.endswith("status") and told["state"] == "online":
            self.online.set()
        self.predictions += message.topic.endswith("predictions")
        self.trainings += told.get("event") == "training_finished" and told["outcome"] == "done"
        self.swaps += told.get("event") == "model_promoted"

    def feed(self, samples: int, rate: float) -> None:
        """Publish that many samples of the plant with their labels, and wait for the predictions."""
        x, y = Plant(0, total=samples).sample(samples)
        began = time.monotonic()
        for row in range(samples):
            time.sleep(max(0.0, began + row / rate - time.monotonic()))
            payload = {"x": x[row].tolist(), "y": CLASSES[y[row]]}
            self._client.publish("plant/a", json.dumps(payload), qos=1)
        deadline = time.monotonic() + 60
        while self.predictions < samples and time.monotonic() < deadline:
            time.sleep(0.1)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def configuration(example: Path | None, folder: Path, port: int) -> Path:
    """The profile of an example on the plant's stream, in `folder`."""
    values: dict[str, Any] = {} if example is None else yaml.safe_load(example.read_text(encoding="utf-8"))
    profile = {
        key: values.get(key, {}) for key in ("training", "serving", "outbox", "report", "weights", "gate")
    }
    stream = {"topic": "plant/#", "features": len(FEATURES), "classes": list(CLASSES), "label": "y"}
    values = profile | {
        "device": {"id": "board"},
        "mqtt": values.get("mqtt", {}) | {"host": "127.0.0.1", "port": port},
        "stream": {"max_payload": values.get("stream", {}).get("max_payload", "64KiB")} | stream,
        "model": {"bundle": str(folder / "bundle")},
        "storage": values.get("storage", {}) | {"dir": str(folder / "state")},
    }
    path = folder / "edged.yaml"
    path.write_text(yaml.safe_dump({key: part for key, part in values.items() if part}), encoding="utf-8")
    return path


def measure(example: Path | None, limit: int, samples: int, rate: float, python: str) -> dict[str, Any]:
    """One daemon under the limit; what it and its trainers needed."""
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker() as broker, group(limit) as (cgroup, files):
        folder = Path(name)
        model = mlp(len(FEATURES), len(CLASSES), (64, 32))
        build(model, folder / "bundle", loss="cross_entropy", standardise=Statistics.identity(len(FEATURES)))
        client, path = Client(broker.port), configuration(example, folder, broker.port)
        with (folder / "log").open("wb") as log:
            command = ["sh", "-c", ENTER, "sh", str(cgroup), python, "-m", "edged", "run", str(path)]
            daemon = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        watch = Watch(cgroup)
        try:
            if not client.online.wait(30):
                raise SystemExit((folder / "log").read_text(errors="replace")[-2000:])
            client.feed(samples, rate)
        finally:
            watch.stop()
            daemon.terminate()
            code = daemon.wait(20)
            client.close()
        peak = int((cgroup / files[1]).read_text(encoding="ascii"))
        ended = _field((cgroup / files[2]).read_text(encoding="ascii"), "oom_kill")
    return {
        "what": "defaults" if example is None else example.stem, "limit_mib": limit >> 20, "samples": samples,
        "predictions": client.predictions, "trainings": client.trainings, "swaps": client.swaps,
        "memory_mb": round(watch.together / 1e6, 1), "daemon_mb": round(watch.daemon / 1e6, 1),
        "trainer_mb": round(watch.trainer / 1e6, 1), "charged_mb": round(peak / 1e6, 1),
        "ended_for_memory": ended, "exit_code": code,
    }  # fmt: skip


def _field(text: str, name: str) -> int:
    found = dict(line.split(maxsplit=1) for line in text.splitlines() if line)
    return int(found.get(name, 0))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--limit", type=int, default=256, help="MiB for daemon and trainer together")
    parser.add_argument("--config", type=Path, help="one profile; configs/low-memory.yaml and the defaults")
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--rate", type=float, default=100.0, help="samples a second")
    parser.add_argument("--python", default=sys.executable, help="interpreter of an installation to measure")
    args = parser.parse_args()
    profiles = [args.config] if args.config else [ROOT / "configs" / "low-memory.yaml", None]
    rows = [measure(p, args.limit << 20, args.samples, args.rate, args.python) for p in profiles]
    finish("board", rows, args)


if __name__ == "__main__":
    main()
