"""After a wipe no byte of a sample is in the state directory of a real daemon, nor was it ever in its log."""

from __future__ import annotations

import json
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.clock import SystemClock
from edged.storage.web_access import Pairing
from edged.workbench.demo.broker import free_port
from tests.device.web.client import Client
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

ROWS = 120
PATIENCE = 90.0
STREAM: dict[str, Any] = {"features": 3, "classes": 2, "label": "y", "id": "id", "key": "key"}
ALL = ["samples", "labels", "checkpoints", "models"]


class Traces:
    """Samples that can be recognised: by their keys, ids and values, as text and as float32."""

    def __init__(self) -> None:
        # Five digits that are a float32 exactly, so that the text is the same wherever it is written.
        values = np.random.default_rng().integers(100_000, 999_999, (ROWS, 3)) / 64
        self.x = values.astype(np.float32)
        self.keys = [f"key-{secrets.token_hex(8)}" for _ in range(4)]
        self.ids = [f"id-{secrets.token_hex(8)}" for _ in range(ROWS)]

    def send(self, listener: Listener) -> None:
        for row in range(ROWS):
            x, key = [float(value) for value in self.x[row]], self.keys[row % 4]
            listener.send("sensors/a", {"key": key, "id": self.ids[row], "x": x, "y": row % 2})
        listener.send("sensors/a", {"key": self.keys[0], "id": self.ids[0], "x": self.ids[1]})

    def needles(self) -> list[bytes]:
        texts = [str(float(value)) for value in self.x.ravel()]
        return [
            *(row.tobytes() for row in self.x),
            *(name.encode() for name in (*self.keys, *self.ids, *texts)),
        ]

    def found(self, *paths: Path) -> dict[str, list[bytes]]:
        """By file, which of them it has."""
        files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
        found = {}
        for file in files:
            content = file.read_bytes() if file.is_file() else b""
            if hits := [needle for needle in self.needles() if needle in content]:
                found[file.name] = hits
        return found


def full_device(folder: Path, broker: Broker) -> tuple[Device, Any]:
    """A daemon with traces everywhere: in messages that wait, labels by command, requests, damaged copies."""
    labels = {"request_share": 1.0, "request_random": 1.0, "requests_per_day": 1000}
    training = {"engine": "portable", "every": None, "new_labels": 0}
    web = {"listen": f"127.0.0.1:{free_port()}"}
    device = Device(folder, broker.port, STREAM, labels=labels, web=web, training=training)
    device.wrapper = ["sh", "-c", 'umask 022; exec "$0" "$@"']
    return device, running(device, broker.port)


def leave_copies(state: Path, traces: Traces) -> None:
    for name in (
        "samples.db.damaged-20260101T000000Z",
        "outbox.db.damaged-20260101T000000Z",
        ".replaced/samples.db",
    ):
        (state / name).parent.mkdir(exist_ok=True)
        (state / name).write_bytes(traces.x.tobytes() + traces.ids[0].encode())


def fill(listener: Listener, device: Device, traces: Traces) -> None:
    traces.send(listener)
    listener.wait(lambda: len(listener.messages["predictions"]) >= ROWS, PATIENCE)
    assert listener.request("label", id=traces.ids[3], label=1)["status"] == "ok"
    assert listener.request("label", key=traces.keys[1], label=1, hold=True)["status"] == "ok"
    first_to_last = {"from": 0, "to": "2100-01-01T00:00:00Z", "key": traces.keys[2]}
    assert listener.request("label", **first_to_last, label=0)["status"] == "ok"
    assert listener.request("train", transaction="t", steps=20)["status"] == "ok"
    listener.wait(lambda: listener.events("training_finished"), PATIENCE)
    look(listener, device, traces)
    device.stop()
    device.start()  # an orderly end has written down what the registry keeps
    listener.wait(lambda: len(listener.events("started")) == 2, PATIENCE)


def look(listener: Listener, device: Device, traces: Traces) -> None:
    """What a person at the page asks for: reviews, the map, the timeline, the mixture, an access."""
    listener.wait(lambda: listener.request("labels.suspects")["data"]["reviewed"], PATIENCE)
    assert listener.request("labels.confirm", ids=[traces.ids[4]])["status"] == "ok"
    assert listener.request("export", what="mixture")["status"] == "ok"
    listener.wait(lambda: (device.state / "exports").is_dir() and any((device.state / "exports").iterdir()))
    pairing = Pairing(device.state, SystemClock())
    assert pairing.redeem(pairing.new_code(["read"], "kitchen"))
    page = Client(int(device.values["web"]["listen"].rpartition(":")[2]))
    assert page("GET", "/api/labels/map").json["points"]["offset"]
    wait_until(lambda: page("GET", f"/api/timeline?key={traces.keys[2]}").json["first"] is not None)
    assert page("GET", "/").status == 200


def private(state: Path) -> bool:
    """Whether nobody else has a right to anything there."""
    return all(path.stat().st_mode & 0o077 == 0 for path in (state, *state.rglob("*")))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wipe_of_everything_leaves_no_trace(broker: Broker, tmp_path: Path) -> None:
    traces = Traces()
    device, up = full_device(tmp_path, broker)
    with up as listener:
        listener.request("status")
        fill(listener, device, traces)
        device.stop()
        assert private(device.state)
        put_in_the_outbox(device.state, traces)
        leave_copies(device.state, traces)
        before = traces.found(device.state)
        assert {"samples.db", "outbox.db", "outbox.db.damaged-20260101T000000Z"} <= set(before)
        done = device.cli("wipe", str(device.path), *(f"--{name}" for name in ALL), "--yes")
        assert (done["samples"], done["messages"]) == (ROWS, ROWS)
        assert traces.found(device.state) == {}
        assert traces.found(device.log) == {}


def put_in_the_outbox(state: Path, traces: Traces) -> None:
    """Predictions as a daemon without a broker writes them down."""
    from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
    from edged.storage.outbox.queue import Outbox

    with closing(
        Outbox.open(state / "outbox.db", max_bytes=1 << 22, max_age=1e9, clock=SystemClock())
    ) as outbox:
        outbox.erase()
        for row in range(ROWS):
            said = {
                "event": "label_requested",
                "ts": 1.7e9,
                "key": traces.keys[row % 4],
                "id": traces.ids[row],
                "values": traces.x[row].tolist(),
            }
            outbox.put(
                [(OutboxMessage(MessageKind.EVENT, "edged/rig/events", json.dumps(said).encode()), False)]
            )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_running_daemon_leaves_no_trace_either(broker: Broker, tmp_path: Path) -> None:
    traces = Traces()
    device, up = full_device(tmp_path, broker)
    with up as listener:
        traces.send(listener)
        listener.wait(lambda: len(listener.messages["predictions"]) >= ROWS, PATIENCE)
        assert listener.request("label", id=traces.ids[3], label=1)["status"] == "ok"
        device.stop()
        put_in_the_outbox(device.state, traces)
        leave_copies(device.state, traces)
        with closing(sqlite3.connect(device.state / "outbox.db")) as db:  # kinds that leave last
            assert db.execute("SELECT count(*) FROM EVENT").fetchone()[0] == ROWS
        device.start()
        listener.wait(lambda: len(listener.events("started")) == 2, PATIENCE)
        listener.messages["response/wipe"].clear()
        answer = listener.request("wipe", confirm="rig", what=ALL, transaction="w")
        listener.wait(
            lambda: any(a.get("status") == "ok" for a in listener.messages["response/wipe"]), PATIENCE
        )
        assert answer["status"] in ("ok", "accepted"), answer
        wait_until(lambda: traces.found(device.state) == {}, 30.0)
        device.stop()
        assert traces.found(device.state) == {}
        assert traces.found(device.log) == {}
