"""The daemon without its broker: nothing that must arrive is lost, whatever happens to the process."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.clock import SystemClock
from edged.device.outbound.publisher import OutboundRouter
from edged.device.outbound.weight_updates import WeightUpdates
from edged.domain.commands.delivery_policy import MessageKind
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.journal.journal import AHEAD, Sequence
from edged.storage.models.bundle_archive import ActiveBundle
from edged.storage.models.registry import Registry
from edged.storage.outbox.queue import DATABASE
from edged.storage.outbox.tables import OutboxBacklog
from tests.commands import edged
from tests.constants import configured
from tests.mqtt.inbox import Inbox
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto

STREAM: dict[str, Any] = {"features": 2, "classes": 2, "label": "y"}


@pytest.fixture
def lasting(make_broker: MakeBroker, tmp_path: Path) -> Mosquitto:
    """A broker that knows its sessions again after a restart."""
    home = tmp_path / "broker"
    home.mkdir()
    lines = ("allow_anonymous true", "persistence true", f"persistence_location {home}/")
    return make_broker(*lines, directory=home)


@pytest.fixture
def inbox(lasting: Mosquitto) -> Iterator[Inbox]:
    """What comes to somebody who listens to the device and is never forgotten by the broker."""
    config = configured(
        {"device": {"id": "x"}, "stream": STREAM, "mqtt": {"port": lasting.port, "reconnect_max": "1s"}}
    )
    session = Session(config.mqtt, client_id="receiver")
    received = Inbox(session)
    session.subscribe(["edged/rig/#"], 1, received)
    session.start()
    assert session.wait_ready(20)
    yield received
    session.stop(1.0)


def on_disk(device: Device, kind: MessageKind) -> list[dict[str, Any]]:
    """The messages of one kind that wait."""
    path = device.state / DATABASE
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        found = db.execute(f"SELECT payload FROM {kind.name} ORDER BY number").fetchall()  # noqa: S608
    return [json.loads(payload) for (payload,) in found]


def of(inbox: Inbox, name: str) -> list[dict[str, Any]]:
    """What the device published on one topic; what the broker told the listener twice counts once."""
    came: dict[bytes, dict[str, Any]] = {}
    published = []
    for delivery in list(inbox.deliveries):
        if delivery.topic == f"edged/rig/{name}" and not (delivery.dup and delivery.payload in came):
            came[delivery.payload] = json.loads(delivery.payload)
            published.append(came[delivery.payload])
    return published


def feed(listener: Listener, count: int) -> None:
    for row in range(count):
        listener.send("sensors/a", {"x": [row % 7 - 3.0, row % 5 - 2.0], "y": row % 2})
    listener.wait(lambda: len(listener.messages["predictions"]) >= count)


@pytest.mark.slow
def test_kill_9_while_the_broker_is_away_loses_no_committed_message(
    lasting: Mosquitto, inbox: Inbox, tmp_path: Path
) -> None:
    long = {"steps": 20_000, "max_steps": 20_000}  # so that a run ends while the broker is away
    device = Device(
        tmp_path, lasting.port, STREAM,
        training={"engine": "portable", "every": "1s", "new_labels": 20, **long},
        report={"every": "0.2s"}, outbox={"rate": 500},
    )  # fmt: skip
    with running(device, lasting.port) as listener:
        feed(listener, 100)
        listener.wait(lambda: listener.messages["metrics"])
        told = {"pending", "bytes", "dropped"}
        assert set(listener.messages["state/buffer"][-1]["outbox"]) == told
        assert set(listener.messages["metrics"][-1]["outbox"]) == told
        listener.wait(lambda: listener.events("training_started"))
        lasting.stop()  # so that the run ends while nobody hears of it
        wait_until(
            lambda: len(on_disk(device, MessageKind.METRICS)) >= 4 and on_disk(device, MessageKind.EVENT),
            60.0,
        )
        device.stop(9)
        first = on_disk(device, MessageKind.METRICS) + on_disk(device, MessageKind.EVENT)
        device.start()
        wait_until(lambda: on_disk(device, MessageKind.METRICS)[-1]["boot"] == 2)
        assert device.stop() == 0
        safe = on_disk(device, MessageKind.METRICS) + on_disk(device, MessageKind.EVENT)
        assert [m for m in first if m not in safe] == []
        status = edged("status", device.path, "--json").json
        assert (status["state"], status["outbox"]["pending"]) == ("stopped", len(safe))
        device.start()
        lasting.start()
        late = [m | {"historical": True} for m in safe]
        wait_until(lambda: all(m in of(inbox, "metrics") + of(inbox, "events") for m in late))
        wait_until(lambda: of(inbox, "metrics")[-1]["outbox"]["pending"] <= 1)
    check_order(of(inbox, "metrics"))
    check_order(of(inbox, "events"))


def check_order(messages: list[dict[str, Any]]) -> None:
    """Late ones are in order and live ones are; each came once; numbers go on over the restarts."""
    order = [(m["boot"], m["seq"]) for m in messages]
    assert len(set(order)) == len(order), "each once"
    for late in (True, False):
        mine = [(m["boot"], m["seq"]) for m in messages if m.get("historical", False) is late]
        assert mine == sorted(mine)
    by_number = sorted(order, key=lambda entry: entry[1])
    assert by_number == sorted(order), "a later start has higher numbers"


# ---- what is published and by which way ------------------------------------------------------------


class NoBundle(ActiveBundle):
    """Fails the test that asks for weights."""

    def __init__(self) -> None: ...

    def open(self) -> Bundle:
        raise AssertionError("no weights are asked for")


def publishing(
    tmp_path: Path, broker: Mosquitto, **sections: Any
) -> tuple[OutboundRouter, Session, Registry]:
    values = {
        "mqtt": {"port": broker.port, "reconnect_max": "1s"},
        "storage": {"dir": str(tmp_path / "state")},
    }
    config = configured({"device": {"id": "rig"}, "stream": STREAM} | values | sections)
    session = Session(config.mqtt, client_id="device")
    registry = Registry.open(tmp_path / "state")
    made = OutboundRouter(
        config,
        topics=Topics("edged/rig"),
        session=session,
        registry=registry,
        updates=WeightUpdates(config, NoBundle(), registry),
        clock=SystemClock(),
        boot=registry.next_boot(),
        number=Sequence(registry),
    )
    made.forwarder.start()
    session.start()
    return made, session, registry


def end(made: OutboundRouter, session: Session, registry: Registry) -> None:
    session.stop(2.0)
    made.forwarder.stop()
    registry.close()


def predictions(numbers: range) -> list[bytes]:
    return [b'{"id":"%d"}' % number for number in numbers]


def test_predictions_that_must_be_delivered_survive_a_restart_without_a_broker(
    lasting: Mosquitto, inbox: Inbox, tmp_path: Path
) -> None:
    sections = {"serving": {"must_deliver": True}, "outbox": {"rate": 1000}}
    lasting.stop()
    parts = publishing(tmp_path, lasting, **sections)
    parts[0].predicted(predictions(range(200)))
    wait_until(lambda: parts[0].outbox().pending == 200)
    end(*parts)
    parts = publishing(tmp_path, lasting, **sections)
    assert parts[0].outbox().pending == 200
    lasting.start()
    wait_until(lambda: parts[1].connected)
    parts[0].predicted(predictions(range(200, 210)))
    inbox.wait(210)
    came = of(inbox, "predictions")
    late = [p for p in came if p.get("historical")]
    assert [(p["id"], p["boot"]) for p in late] == [(str(number), 1) for number in range(200)]
    assert [p["seq"] for p in late] == sorted({p["seq"] for p in late})
    assert [(p["id"], p["boot"]) for p in came if "historical" not in p] == [
        (str(number), 2) for number in range(200, 210)
    ]
    wait_until(lambda: parts[0].outbox().pending == 0)
    end(*parts)


def test_other_predictions_and_states_are_not_kept(lasting: Mosquitto, inbox: Inbox, tmp_path: Path) -> None:
    lasting.stop()
    made, session, registry = publishing(tmp_path, lasting)
    assert made.now("edged/rig/state/model", b"{}", qos=1, retain=True) is False
    made.deliver(MessageKind.EVENT, "edged/rig/events", b'{"seq":1}')
    made.predicted(predictions(range(5)))
    wait_until(lambda: made.outbox().pending == 1)
    end(made, session, registry)


def test_an_outbox_that_cannot_be_opened_keeps_nothing_from_being_sent(
    lasting: Mosquitto, inbox: Inbox, tmp_path: Path
) -> None:
    (tmp_path / "state" / DATABASE).mkdir(parents=True)
    made, session, registry = publishing(tmp_path, lasting)
    made.deliver(MessageKind.EVENT, "edged/rig/events", b'{"seq":1}')
    inbox.wait(1)
    wait_until(lambda: made.outbox() == OutboxBacklog(0, 0, 0))
    end(made, session, registry)


def test_numbers_follow_on_after_an_end_and_never_come_again_after_a_kill(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        sequence = Sequence(registry)
        assert [sequence(), sequence()] == [1, 2]
        sequence.close()
        sequence = Sequence(registry)
        assert sequence() == 3
        for _ in range(AHEAD // 2):
            last = sequence()
        sequence.reserve()
        after_a_kill = Sequence(registry)()
        assert last < after_a_kill <= last + AHEAD + 1
