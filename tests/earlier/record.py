"""Record what this version leaves on a disk: `python -m tests.earlier.record FOLDER` makes the new FOLDER.

The daemon promotes two models, rolls one back and rejects one, joins labels, puts messages into the
quarantine, and gets a setting and a pause. It is killed during a training run while its broker is away.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from edged import __version__
from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.protocols import LearningRate
from edged.engines.portable.engine import PortableEngine
from edged.signing import new_pair
from edged.storage.models.bundle_archive import pack_bundle
from edged.storage.models.bundles import Bundle
from edged.storage.models.signatures import sign_bundle
from edged.storage.outbox.queue import DATABASE
from edged.workbench.demo.broker import free_port
from tests.earlier import EVERY, FIXED, WIDTH, batches, feed, learned
from tests.faults.plant import trainer_of
from tests.mosquitto import Mosquitto
from tests.running_device import Device, running, wait_until
from tests.steered import data

AGES = "36500d"  # a recording is opened years later
VALUES: dict[str, Any] = {
    "stream": {"features": WIDTH, "classes": ["low", "high"], "label_topic": "labels/#", "id": "id"},
    "model": {"bundle": "signed.edged", "keys": ["key.pub"]},
    "training": {
        "engine": "portable", "every": None, "new_labels": 0, "checkpoint_every": EVERY,
        "keep_checkpoints": 2, "max_steps": 40_000,
    },
    "gate": {
        "min_holdout": 1, "holdout": 0.2, "min_gain": -1.0, "max_regret": 1.0, "probation": 0,
        "recall": False,
    },
    "drift": {"train": False},
    "report": {"every": "0.2s"},
    "outbox": {"max_age": AGES},
    "commands": {"keep_for": AGES},
}  # fmt: skip
FILES = ("state", "bundle", "bundle.edged", "signed.edged", "key.pub")
ROWS = 400
STEPS = 15_000


def main(out: Path) -> None:
    """Record into the new folder `out`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        losses = make_bundles(folder)
        broker = Mosquitto(folder, free_port())
        device = Device(folder, broker.port, **VALUES)
        broker.start()
        try:
            recorded = live(device, broker)
        finally:
            broker.stop()
        out.mkdir()
        told = {"version": __version__, "losses": losses, "run": cut_off(device), "waiting": waiting(device)}
        (out / "recorded.json").write_text(json.dumps(told | recorded, indent=1) + "\n", encoding="utf-8")
        values = yaml.safe_load(device.path.read_text(encoding="utf-8"))
        (out / "edged.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        with tarfile.open(out / "files.tar.xz", "w:xz") as archive:
            for name in FILES:
                archive.add(folder / name, name, filter=anonymous)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the name of who recorded it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def make_bundles(folder: Path) -> list[float]:
    """The bundle in its three forms, and the losses of its first steps."""
    model, statistics = mlp(WIDTH, 2, (8,)), Statistics.identity(WIDTH)
    path = folder / "bundle"
    build(model, path, loss="cross_entropy", standardise=statistics, engine="portable")
    engine = PortableEngine(Bundle.open(path))
    engine.begin(LearningRate(0.05))
    losses = [round(engine.step(x, y).loss, 6) for x, y in batches(10)]
    pack_bundle(path, folder / "bundle.edged")
    new_pair(folder / "key")
    sign_bundle(path, folder / "key")
    pack_bundle(path, folder / "signed.edged")
    (path / "bundle.sig").unlink()
    return losses


def live(device: Device, broker: Mosquitto) -> dict[str, Any]:
    """Let a daemon live, with an orderly restart, until it is killed; what it said of itself."""
    with running(device, broker.port) as listener:
        feed(listener, "a", ROWS)
        for version in (2, 3):
            assert data(listener, "train", steps=300)["verdict"]["promoted"] == version
    with running(device, broker.port) as listener:
        assert data(listener, "rollback", version=2)["to"] == 2
        setting = {"gate.min_gain": 10.0, "log.level": "debug"}
        data(listener, "config.set", **setting)
        assert data(listener, "train", steps=100)["verdict"]["accepted"] is False
        for payload in ("no JSON", json.dumps({"id": "short", "x": [1.0]})):
            listener.publish("sensors/a", payload)
        feed(listener, "b", ROWS)
        data(listener, "checkpoint")  # the drift detectors are kept then
        listener.publish("sensors/a", json.dumps({"id": "late", "x": FIXED}))
        wait_until(lambda: data(listener, "status")["samples"] == 2 * ROWS + 1)
        data(listener, "pause", what="training")
        status = data(listener, "status")
        # Two runs in a row: of the first the broker never hears how it ended, the second is cut off.
        runs = len(listener.events("training_started"))
        for transaction, steps in (("one", 2000), ("two", STEPS)):
            asked = json.dumps({"transaction": transaction, "steps": steps})
            listener.publish(f"{listener.root}/request/train", asked)
        listener.wait(lambda: len(listener.events("training_started")) > runs)
        broker.stop()
        wait_until(lambda: "training_started" in waiting(device)["events"] and cut_off(device), 60)
        assert device.process is not None
        trainer = Path(f"/proc/{trainer_of(device.process.pid)}/stat")
        device.stop(9)
        wait_until(lambda: not trainer.exists(), 60)
    kept = ("samples", "labels", "quarantined", "on_hold", "boot")
    return {
        "status": {name: status[name] for name in kept},
        "champion": status["model"]["version"],
        "settings": setting,
        "output": listener.messages["predictions"][-1]["output"],
    }


def waiting(device: Device) -> dict[str, list[Any]]:
    """What waits for the broker: names of events, numbers (`seq`) of metrics."""
    found = {}
    with closing(sqlite3.connect(f"file:{device.state / DATABASE}?mode=ro", uri=True)) as db:
        for topic, kind, field in (("events", "EVENT", "event"), ("metrics", "METRICS", "seq")):
            rows = db.execute(f"SELECT payload FROM {kind} ORDER BY number").fetchall()  # noqa: S608
            found[topic] = [json.loads(payload)[field] for (payload,) in rows]
    return found


def cut_off(device: Device) -> dict[str, int]:
    """Of the newest checkpoint, if its run is under way: `step` of `steps`, `total` steps of all runs."""
    number, learner = learned(device.state)
    if not learner.get("plan") or learner["step"] < 5 * EVERY:
        return {}
    total = learner["total_steps"]
    return {"steps": STEPS, "step": learner["step"], "total": total, "generation": number}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
