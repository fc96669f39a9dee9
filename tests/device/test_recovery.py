"""The daemon is ended in every way, its state is damaged; it starts again, serves, and says what happened."""

from __future__ import annotations

import signal
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.daemon import EXIT_DAMAGED
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

pytestmark = pytest.mark.timeout(600)  # several starts of a daemon each
PATIENCE = 120.0
SMALL: dict[str, Any] = {"features": 3, "classes": 2, "label": "y", "id": "id"}


def feed(listener: Listener, count: int) -> None:
    """Samples that are answered."""
    before, rng = len(listener.messages["predictions"]), np.random.default_rng(0)
    for row in range(count):
        x = rng.normal(size=3)
        listener.send("sensors/a", {"id": f"s{before + row}", "x": x.tolist(), "y": int(x[0] > 0)})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, PATIENCE)


def started(device: Device, listener: Listener, **environment: str) -> dict[str, Any]:
    """Start the daemon again; its event, not that of an earlier start which is delivered once more."""
    begun = time.time()
    device.start(**environment)
    try:
        listener.wait(lambda: any(e["ts"] >= begun for e in listener.events("started")), PATIENCE)
    except AssertionError:
        assert device.process is not None
        pytest.fail(f"exit code {device.process.poll()}; {device.log.read_text()[-3000:]}")
    return next(e for e in listener.events("started") if e["ts"] >= begun)


@pytest.mark.slow
def test_a_start_says_why_it_is_one(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, SMALL, training={"enabled": False})
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.events("started"), PATIENCE)
        (first,) = listener.events("started")
        assert (first["boot_reason"], first["repaired"], first["model"]) == ("first_start", [], 1)
        assert device.stop() == 0
        assert started(device, listener)["boot_reason"] == "clean_stop"
        device.stop(signal.SIGKILL)
        (device.state / "models" / ".staging-9").mkdir()
        crashed = started(device, listener, WATCHDOG_USEC="600000000")
        assert crashed["boot_reason"] == "crash"
        assert crashed["repaired"] == ["removed models/.staging-9, which was never published"]
        listener.wait(
            lambda: any(m["recovery"]["repaired"] == 1 for m in listener.messages["metrics"]), PATIENCE
        )
        assert listener.messages["metrics"][-1]["recovery"]["boot_reason"] == "crash"
        assert device.stop(signal.SIGABRT) == -signal.SIGABRT
        again = started(device, listener)
        assert (again["boot_reason"], again["boot"]) == ("watchdog", 4)


def spoil_a_table(path: Path) -> None:
    """Let SQLite find damage the next time that it looks at the table: its root page lies beyond the file."""
    db = sqlite3.connect(path, isolation_level=None)
    version = db.execute("PRAGMA schema_version").fetchone()[0]
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET rootpage = 987654 WHERE name = 'samples'")
    db.execute(f"PRAGMA schema_version = {version + 1}")
    db.close()


@pytest.mark.slow
def test_damaged_databases_are_set_aside_and_serving_goes_on(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, SMALL, training={"enabled": False})
    with running(device, broker.port) as listener:
        feed(listener, 20)
        device.stop()
        for name in ("samples.db", "state.db"):
            path = device.state / name
            path.write_bytes(b"nothing of SQLite's" + path.read_bytes()[19:])
        repaired = started(device, listener)["repaired"]
        assert [line.split(" was ")[0] for line in repaired[:2]] == ["samples.db", "state.db"]
        assert "model 1 was taken up from its manifest" in repaired
        feed(listener, 20)
        assert listener.messages["predictions"][-1]["model"] == 1
        wait_until(lambda: device.cli("status", str(device.path))["samples"] == 20, PATIENCE)
        spoil_a_table(device.state / "samples.db")
        listener.send("sensors/a", {"id": "late", "x": [1.0, 2.0, 3.0], "y": 1})
        assert device.process is not None
        assert device.process.wait(PATIENCE) == EXIT_DAMAGED
        given_up = started(device, listener)
        assert given_up["boot_reason"] == "damaged"
        assert given_up["repaired"][0].startswith("samples.db was set aside as samples.db.damaged-")
        # The message that could not be stored was not acknowledged either: the broker delivers it again.
        wait_until(lambda: device.cli("status", str(device.path))["samples"] == 1, PATIENCE)
        assert len(list(device.state.glob("samples.db.damaged-*Z*"))) >= 2


@pytest.mark.slow
def test_a_training_run_that_was_cut_off_goes_on_by_itself(broker: Broker, tmp_path: Path) -> None:
    device = Device(
        tmp_path, broker.port, SMALL, training={"engine": "portable", "every": None, "new_labels": 0}
    )
    with running(device, broker.port) as listener:
        feed(listener, 300)
        assert listener.request("train", transaction="t", steps=30_000)["status"] == "ok"
        wait_until((device.state / "checkpoints" / "1").exists, PATIENCE)
        device.stop(signal.SIGKILL)
        started(device, listener)
        listener.wait(lambda: len(listener.events("training_started")) == 2, PATIENCE)
        assert listener.events("training_started")[-1]["trigger"] == "resume"
