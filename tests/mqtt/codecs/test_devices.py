"""Daemons that speak another format than JSON."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import pytest
import yaml

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.mqtt.sparkplug.payload import BOOLEAN, REBIRTH, Metric, Payload
from tests.building import build
from tests.formats import FEATURES, NODE, TS, birth, data, wire
from tests.mqtt.inbox import Inbox
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto
    from tests.mqtt.conftest import Connect

OWN = "spBv1.0/plant/{}/rig"


def bundle(folder: Path) -> str:
    return str(build(mlp(3, 2, (8,)), folder, loss="cross_entropy", standardise=Statistics.identity(3)).path)


def said(inbox: Inbox, kind: str) -> list[Payload]:
    """What the daemon's own edge node has said."""
    return [wire.read(d.payload) for d in inbox.deliveries if d.topic == OWN.format(kind)]


def counted(listener: Listener) -> tuple[int, int, int]:
    """Samples, labels and rejected messages that the daemon has."""
    status = listener.request("status")["data"]
    return status["samples"], status["labels"], status["quarantined"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_daemon_hears_edge_nodes_and_is_one(broker: Mosquitto, connect: Connect, tmp_path: Path) -> None:
    stream: dict[str, Any] = {
        "topic": "spBv1.0/plant/+/press-7/#", "key": None, "codec": "sparkplug",
        "features": list(FEATURES), "classes": ["ok", "worn"], "label": "state",
    }  # fmt: skip
    device = Device(
        tmp_path, broker.port, stream, model={"bundle": bundle(tmp_path / "bundle")},
        sparkplug={"group": "plant"},
    )  # fmt: skip
    inbox = Inbox()
    host = connect("host", subscribe=("spBv1.0/#", inbox))
    with running(device, broker.port) as listener:
        host.publish(NODE.format("DDATA") + "/vib", data({"temp": 1.0}, 2), qos=1)
        listener.wait(lambda: listener.events("sample_quarantined"))
        assert listener.events("sample_quarantined")[0]["reason"] == "no_birth"
        asked = NODE.format("NCMD")
        wait_until(lambda: asked in [d.topic for d in inbox.deliveries])

        host.publish(NODE.format("NBIRTH"), birth("NBIRTH", 0), qos=1)
        host.publish(NODE.format("DBIRTH") + "/vib", birth(), qos=1)
        for number in range(20):
            changed = {"temp": float(number), "state": "worn" if number % 2 else "ok"}
            host.publish(NODE.format("DDATA") + "/vib", data(changed, number + 2, TS + number), qos=1)
        listener.wait(lambda: len(listener.messages["predictions"]) == 20)
        first = listener.messages["predictions"][0]
        assert (first["key"], first["ts"]) == ("plant/press-7/vib", TS)
        # A sample is predicted before it is committed.
        wait_until(lambda: counted(listener) == (20, 20, 1))

        aliases = {m.name: m.alias for m in said(inbox, "NBIRTH")[0].metrics}
        count = (aliases["Samples/Count"], 20)
        wait_until(lambda: count in [(m.alias, m.value) for p in said(inbox, "NDATA") for m in p.metrics])
        rebirth = Metric(REBIRTH, True, datatype=BOOLEAN)
        host.publish(OWN.format("NCMD"), wire.write([rebirth], ts=TS, seq=None))
        wait_until(lambda: len(said(inbox, "NBIRTH")) >= 2)
        values = {m.name: m.value for m in said(inbox, "NBIRTH")[-1].metrics}
        assert values["Samples/Count"] == 20
        assert values["Prediction/Key"] == "plant/press-7/vib"
        train = Metric("Node Control/Train", True, datatype=BOOLEAN)
        host.publish(OWN.format("NCMD"), wire.write([train], ts=TS, seq=None), qos=1)
        listener.wait(lambda: listener.messages["response/train"])
        assert listener.messages["response/train"][0]["status"] == "ok"

        device.stop(signal.SIGKILL)
        wait_until(lambda: said(inbox, "NDEATH"))
        assert said(inbox, "NDEATH")[0].metrics[0].value == values["bdSeq"] == 0
        device.start()
        wait_until(lambda: len(said(inbox, "NBIRTH")) >= 3)
        assert {m.name: m.value for m in said(inbox, "NBIRTH")[-1].metrics}["bdSeq"] == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_daemon_reads_cbor(broker: Mosquitto, connect: Connect, tmp_path: Path) -> None:
    stream: dict[str, Any] = {
        "codec": "cbor", "features": 3, "classes": 2, "id": "id",
        "label": {"topic": "labels/#", "join": "id"},
    }  # fmt: skip
    device = Device(tmp_path, broker.port, stream, model={"bundle": bundle(tmp_path / "bundle")})
    sender = connect("sender")
    with running(device, broker.port) as listener:
        for number in range(20):
            payload = cbor2.dumps({"x": [1.0, 2.0, number], "id": f"s{number}"})
            sender.publish("sensors/m1", payload, qos=1)
        listener.wait(lambda: len(listener.messages["predictions"]) == 20)
        sender.publish("labels/m1", cbor2.dumps({"id": "s3", "label": 1}), qos=1)
        listener.wait(lambda: any(m["labels"]["share"] for m in listener.messages["metrics"]))
        assert listener.request("status")["data"]["labels"] == 1


def test_a_daemon_without_the_package_says_which_extra_brings_it(tmp_path: Path) -> None:
    path = tmp_path / "edged.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "device": {"id": "rig"},
                "stream": {"features": 3, "classes": 2, "codec": "msgpack"},
                "model": {"bundle": bundle(tmp_path / "bundle")},
            }
        )
    )
    program = "import sys; sys.modules['msgpack'] = None; from edged.daemon import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, check=False, timeout=60, text=True
    )
    assert done.returncode == 4
    assert 'pip install "edged[codecs]"' in done.stderr.splitlines()[-1]
