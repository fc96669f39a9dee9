"""Flipped bits in a real state directory, and real starts of the daemon on what is left of it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from edged.clock import SystemClock
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.domain.federated.round_orders import KeptUpdate
from edged.storage.models.fleet import FleetModels, SentUpdates
from edged.storage.outbox.queue import Outbox
from edged.storage.web_access import Pairing
from tests.running_device import DAEMONS, Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.forked import Forked
    from tests.mosquitto import Mosquitto

STREAM: dict[str, Any] = {
    "features": ["a", "b", "c"], "missing": {"fill": "last"}, "classes": 2, "label": "y", "id": "id",
}  # fmt: skip
MODEL: dict[str, Any] = {"hidden": [4]}
WEB = {"listen": "0.0.0.0:0"}
"""Open to the network: the device has a certificate of its own and paired browsers."""
STARTS = 6
"""As many may fail, one after the other, as parts can fail twice in a try; far fewer do."""
PATIENCE = 60.0
_PROBE = np.array([1, 2, 3], "<f4").tobytes()


@dataclass
class Tries:
    """What a campaign saw: the starts that the tries took, their losses, and what went wrong."""

    starts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    told: int = 0
    failed: list[str] = field(default_factory=list)


def make_state(folder: Path, broker: Mosquitto) -> Path:
    """A state directory with something of every kind in it, as a daemon that was killed has left it."""
    folder.mkdir()
    training = {"every": None, "new_labels": 0}
    device = Device(folder, broker.port, STREAM, model=MODEL, training=training, web=WEB)
    rng = np.random.default_rng(0)
    with running(device, broker.port) as listener:
        for row in range(400):
            x = rng.normal(size=3)
            listener.send("sensors/a", _message(f"s{row}", x.tolist()) | {"y": int(x[0] > 0)})
        listener.send("sensors/a", {"id": "bad", "a": "no number"})
        listener.wait(lambda: len(listener.messages["predictions"]) >= 400, PATIENCE)
        assert listener.request("train", transaction="t")["status"] == "ok"
        listener.wait(lambda: listener.events("training_finished"), PATIENCE)
        assert listener.request("config.set", **{"gate.min_gain": 0.0})["status"] == "ok"
        for what in ("model", "mixture"):
            assert listener.request("export", what=what)["status"] == "ok"
        listener.wait(lambda: listener.request("labels.suspects")["data"]["reviewed"], PATIENCE)
        assert listener.request("labels.confirm", ids=["s1"])["status"] == "ok"
        # The first interval makes the index that the timeline reads.
        listener.request("label", key="nobody", label=1, **{"from": 0, "to": 1})
        assert listener.request("label", key="nobody", label=1, hold=True)["status"] == "ok"
        piece = {"bytes": 8, "sha256": "0" * 64}
        listener.request("weights.apply", transfer="t1", manifest=piece | {"chunks": [piece]})
        device.stop(signal.SIGKILL)
    state = device.state
    pairing = Pairing(state, SystemClock())
    assert pairing.redeem(pairing.new_code(["read"]))
    pairing.new_code(["read", "label"])
    of_round = KeptUpdate("rig", 1, "0" * 32, "0" * 64, 100, 9)
    with_fleet = SentUpdates(state)
    with_fleet.add(of_round, b"update", {"residual/w": np.zeros(3, np.float32)})
    FleetModels(state).put("0" * 64, b"model")
    outbox = Outbox.open(state / "outbox.db", max_bytes=1 << 20, max_age=1e9, clock=SystemClock())
    outbox.put([(OutboxMessage(MessageKind.EVENT, "edged/rig/events", b'{"event":"old"}'), False)] * 20)
    outbox.close()
    wait_until((state / "config.set.json").exists)
    return state


def _message(name: str, values: list[float]) -> dict[str, Any]:
    return {"id": name} | dict(zip("abc", values, strict=True))


def _rows(state: Path) -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(state / "samples.db")) as db:
        return set(db.execute("SELECT offset, key, ts, x, y FROM samples"))


def _fold_logs(state: Path) -> None:
    """Move the write-ahead logs into their databases, as an orderly end does."""
    for path in state.glob("*.db"):
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def flip(rng: random.Random, state: Path) -> str:
    """Flip 1 to 200 bits in one file, or put something else in its place; what was done."""
    kinds = defaultdict(list)
    for path in sorted(path for path in state.rglob("*") if path.is_file()):
        kinds[path.relative_to(state).parts[0]].append(path)
    databases = [kind for kind in kinds if kind.endswith(".db")]
    path = rng.choice(kinds[rng.choice(databases if rng.random() < 0.5 else sorted(kinds))])
    name = path.relative_to(state).as_posix()
    content = bytearray(path.read_bytes())
    trick = rng.random()
    if trick < 0.04:
        path.unlink()
        path.mkdir()
        return f"{name}: a directory"
    if trick < 0.08 or not content:
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
        return f"{name}: cut"
    bits = rng.randint(1, 200)
    # All over the file, or close together as a page or a sector that went bad.
    start, stop = (0, len(content)) if rng.random() < 0.5 else _stretch(rng, len(content))
    for _ in range(bits):
        content[rng.randrange(start, stop)] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"{name}: {bits} bits from {start} to {stop}"


def _stretch(rng: random.Random, size: int) -> tuple[int, int]:
    start = rng.randrange(size)
    return start, min(size, start + rng.choice((16, 128, 4096)))


class Campaign:
    """Tries on copies of one state, each with a device of its own on one broker."""

    def __init__(self, whole: Path, folder: Path, broker: Mosquitto, seed: int) -> None:
        self._whole, self._folder, self._port, self._seed = whole, folder, broker.port, seed
        self._rows = _rows(whole)

    def run(self, numbers: range) -> Tries:
        """Carry out the tries of these numbers."""
        seen = Tries()
        for number in numbers:
            self._one(number, seen)
        return seen

    def _one(self, number: int, seen: Tries) -> None:
        folder = self._folder / str(number)
        shutil.copytree(self._whole, folder / "state")
        if number % 2:
            _fold_logs(folder / "state")
        what = flip(random.Random(f"{self._seed}/{number}"), folder / "state")
        config, log = self._config(folder, number), folder / "log"
        listener = Listener(self._port, f"edged/t{number}")
        try:
            starts = self._start_until_it_serves(config, log, number, listener)
        finally:
            listener.close()
        seen.starts[starts] += 1
        text = log.read_text(errors="replace") if log.exists() else ""
        told = '"event": "repaired"' in text
        seen.told += told
        problem = "does not serve" if starts == 0 else self._lost(folder / "state", what, told=told)
        if problem is None:
            shutil.rmtree(folder)
        else:
            seen.failed.append(f"try {number} of seed {self._seed}: {what}: {problem}\n{text[-3000:]}")

    def _lost(self, state: Path, what: str, *, told: bool) -> str | None:
        """What is wrong with the samples that are left; a torn log is no damage, but a power cut."""
        left = _rows(state)
        if changed := {row for row in left - self._rows if row[1] != "a" or not row[3].startswith(_PROBE)}:
            before = {row for row in self._rows if row[0] in {offset for offset, *_ in changed}}
            return f"{len(changed)} rows were silently changed, such as {min(changed)} of {before}"
        if not told and not left >= self._rows and not what.startswith("samples.db-"):
            return f"{len(self._rows - left)} rows were lost without a word"
        return None

    def _config(self, folder: Path, number: int) -> Path:
        path = folder / "edged.yaml"
        stream = STREAM | {"topic": f"s{number}/#", "key": "topic:1"}
        mqtt = {"host": "127.0.0.1", "port": self._port}
        values = {"device": {"id": f"t{number}"}, "stream": stream, "model": MODEL, "mqtt": mqtt}
        values |= {"training": {"enabled": False}, "web": WEB}
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    def _start_until_it_serves(self, config: Path, log: Path, number: int, listener: Listener) -> int:
        """How many starts it took; 0 where a start hung or none of `STARTS` served."""
        for start in range(1, STARTS + 1):
            process = DAEMONS.start([str(config)], os.environ, log, log)
            try:
                if self._serves(process, number, listener):
                    return start
                if process.poll() is None:
                    return 0
            finally:
                process.kill()
                process.wait()
        return 0

    @staticmethod
    def _serves(process: Forked, number: int, listener: Listener) -> bool:
        """Whether a sample is answered; False as soon as the process ends."""
        deadline, asked = time.monotonic() + PATIENCE, 0.0
        while time.monotonic() < deadline and process.poll() is None:
            online = any(status["state"] == "online" for status in listener.messages["status"])
            if online and time.monotonic() > asked + 1.0:
                asked = time.monotonic()
                listener.publish(f"s{number}/a", json.dumps(_message("probe", [1.0, 2.0, 3.0])))
            if listener.messages["predictions"]:
                return True
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
        return False
