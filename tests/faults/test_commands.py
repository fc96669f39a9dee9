"""Commands that come again, too late, in any order, broken, too large, retained: no second effect."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.storage.models.registry import Registry
from tests.device.commands.test_commands import LENIENT, ON_COMMAND, STREAM, feed
from tests.running_device import Device, Listener, running
from tests.steered import data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

KINDS = {
    "new": 0.25, "again": 0.3, "expired": 0.1, "old": 0.1, "broken": 0.1, "large": 0.02, "unknown": 0.05,
    "reused": 0.05, "nameless": 0.03,
}  # fmt: skip


class Sender:
    """Sends commands that promote version 1 or 2, and what is meant to do harm."""

    def __init__(self, listener: Listener, seed: int = 0) -> None:
        self._listener = listener
        self._rng = np.random.default_rng(seed)
        self._sent: list[dict[str, Any]] = []
        self.kinds: Counter[str] = Counter()
        self.never: set[str] = set()

    def send(self, count: int) -> None:
        """That many, of all kinds."""
        for kind in self._rng.choice(list(KINDS), size=count, p=list(KINDS.values())):
            name, payload = self._made(str(kind))
            self.kinds[str(kind)] += 1
            self._listener.publish(f"edged/rig/request/{name}", payload)

    def _made(self, kind: str) -> tuple[str, bytes]:
        now, number = time.time(), sum(self.kinds.values())
        fields: dict[str, Any] = {"version": int(self._rng.integers(1, 3)), "transaction": f"{kind}-{number}"}
        if kind == "broken":
            whole = json.dumps(fields | {"nested": [[{}] * 20] * 3}).encode()
            return "promote", whole[: int(self._rng.integers(1, len(whole)))] + self._rng.bytes(3)
        if kind == "new":
            self._sent.append(fields | {"ts": now, "expires": now + 3600})
            fields = self._sent[-1]
        elif kind in ("again", "reused") and self._sent:
            fields = dict(reversed(self._sent[int(self._rng.integers(len(self._sent)))].items()))
            if kind == "reused":
                fields["version"] = 3 - fields["version"]
        elif kind in ("expired", "old"):
            fields |= {"expires": now - 1} if kind == "expired" else {"ts": now - 100_000}
            self.never.add(fields["transaction"])
        elif kind == "large":
            fields["pad"] = "x" * 70_000
        elif kind == "nameless":
            return "ping", b""
        return ("launch" if kind == "unknown" else "promote"), json.dumps(fields).encode()


def outcomes(listener: Listener) -> dict[str, set[str]]:
    """All different answers to each transaction that was carried out, as text."""
    found: dict[str, set[str]] = defaultdict(set)
    for answer in listener.messages["response/promote"]:
        if answer["state"] == "successful":
            found[answer["transaction"]].add(json.dumps(answer, sort_keys=True))
    return found


def answered(listener: Listener) -> int:
    """Answers of all kinds."""
    return sum(len(told) for topic, told in list(listener.messages.items()) if topic.startswith("response/"))


def prepared(listener: Listener) -> None:
    """Two versions that can be promoted."""
    feed(listener, 200)
    assert data(listener, "train", steps=20)["verdict"]["promoted"] == 2


def reigns(device: Device) -> int:
    """How often a command has changed the champion, from the disk."""
    with Registry.open(device.state, readonly=True) as registry:
        return sum(reign.reason == "command" for reign in registry.reigns(100_000))


def device_of(tmp_path: Path, port: int, **commands: Any) -> Device:
    return Device(tmp_path, port, STREAM, training=ON_COMMAND, gate=LENIENT, commands=commands)


@pytest.mark.slow
def test_none_of_hostile_commands_has_a_second_effect_and_all_are_answered_or_counted(
    broker: Broker, tmp_path: Path
) -> None:
    hostile(device_of(tmp_path, broker.port), broker.port, 300)


@pytest.mark.faults
@pytest.mark.timeout(2400)
def test_many_hostile_commands(broker: Broker, tmp_path: Path) -> None:
    hostile(device_of(tmp_path, broker.port), broker.port, 10_000)


def hostile(device: Device, port: int, count: int) -> None:
    """One life of the daemon with `count` commands, and a retained one that it finds."""
    before_it = Listener(port, "edged/rig")
    before_it.publish("edged/rig/request/rollback", '{"transaction": "kept"}', retain=True)
    before_it.close()
    with running(device, port) as listener:
        listener.wait(lambda: listener.messages["response/rollback"], 60)
        (kept,) = listener.messages["response/rollback"]
        assert (kept["state"], kept["transaction"], "retained" in kept["error"]) == ("refused", "kept", True)
        prepared(listener)
        told = len(listener.messages["metrics"])
        listener.wait(lambda: len(listener.messages["metrics"]) > told)
        before = dict(listener.messages["metrics"][-1]["commands"])
        sender, so_far = Sender(listener), answered(listener)
        sender.send(count)
        listener.wait(lambda: _gain(listener, before, "received") >= count, 600)
        listener.wait(
            lambda: answered(listener) - so_far + _gain(listener, before, "unanswered") >= count, 600
        )
        gained = {
            name: _gain(listener, before, name) for name in listener.messages["metrics"][-1]["commands"]
        }
        assert gained["received"] == count
        assert answered(listener) - so_far + gained["unanswered"] == count, gained
        done = outcomes(listener)
        assert all(len(told) == 1 for told in done.values()), "the same answer each time"
        assert not sender.never & set(done)
        effects = [e for e in listener.events("model_promoted") if e["origin"] == "command"]
        assert len(effects) == len(done) == reigns(device), "one effect each"
        assert len(done) > count // 50, sender.kinds
        assert data(listener, "ping")["pong"] is True


def _gain(listener: Listener, before: dict[str, int], name: str) -> int:
    return int(listener.messages["metrics"][-1]["commands"].get(name, 0) - before.get(name, 0))


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_commands_around_kills_have_one_effect_at_most(broker: Broker, tmp_path: Path) -> None:
    device = device_of(tmp_path, broker.port)
    with running(device, broker.port) as listener:
        prepared(listener)
        sender, cut = Sender(listener), 0
        for _ in range(10):
            sender.send(300)
            device.stop(signal.SIGKILL)
            sender.send(20)
            started = len(listener.events("started"))
            device.start()
            listener.wait(lambda: len(listener.events("started")) > started, 60)  # noqa: B023
        data(listener, "ping")
        assert data(listener, "status")["state"] == "online"
        done = outcomes(listener)
        cut = sum("the daemon ended" in a.get("error", "") for a in listener.messages["response/promote"])
        assert all(len(told) == 1 for told in done.values())
        assert not sender.never & set(done)
        assert len(done) <= reigns(device) <= len(done) + cut
