"""Broker and network fail again and again under load: no sample lost, none stored twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.config import loader
from edged.device.admin.status import status_of
from tests.faults.proxy import Proxy
from tests.faults.rig import Rig, payload, restart
from tests.running_device import Listener, running, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto

LASTING = ("allow_anonymous true", "persistence true")
BURST = 100
PATIENCE = 90.0
CUTS = 3  # partitions within a burst


class Storm:
    """Bursts from mosquitto's own publisher, and what goes wrong meanwhile.

    The publisher reaches the broker directly and has ended, every message acknowledged, before the broker
    does: what it repeats itself would be new messages, which nobody can tell from wanted ones.
    """

    def __init__(self, rig: Rig, broker: Mosquitto, proxy: Proxy, seed: int) -> None:
        self._rig = rig
        self._broker = broker
        self._proxy = proxy
        self._rng = random.Random(seed)
        self._pause = threading.Event()  # never set: a time that can be waited for
        self.faults = 0

    def burst(self) -> None:
        """One burst with partitions in it."""
        rig = self._rig
        lines = "".join(f"{payload(number)}\n" for number in range(rig.sent, rig.sent + BURST))
        rig.sent += BURST
        command = ["mosquitto_pub", "-p", str(self._broker.port), "-t", "sensors/a", "-q", "1", "-l"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as publisher:
            assert publisher.stdin is not None
            publisher.stdin.write(lines)
            publisher.stdin.close()
            for _ in range(CUTS):
                self._pause.wait(self._rng.uniform(0.0, 0.15))
                self._proxy.cut()
                self.faults += 1
        assert publisher.returncode == 0

    def restart_broker(self) -> None:
        """End it while it still has messages for us; it keeps them on its disk."""
        restart(self._broker, PATIENCE)
        self.faults += 1

    def hang_broker(self) -> None:
        """It stops answering for a moment."""
        os.kill(self._broker.pid, signal.SIGSTOP)
        self._pause.wait(self._rng.uniform(0.1, 0.4))
        os.kill(self._broker.pid, signal.SIGCONT)
        self.faults += 1

    def rage(self, faults: int) -> None:
        """Until so many things have gone wrong."""
        while self.faults < faults:
            self.burst()
            self._rng.choice((self.restart_broker, self.restart_broker, self.hang_broker))()


@pytest.fixture
def lasting(make_broker: MakeBroker, tmp_path: Path) -> Mosquitto:
    """A broker that keeps sessions and messages over a restart."""
    home = tmp_path / "broker"
    home.mkdir()
    return make_broker(*LASTING, f"persistence_location {home}/", directory=home)


@pytest.fixture
def proxy(lasting: Mosquitto) -> Iterator[Proxy]:
    with closing(Proxy(lasting.port)) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("faults", "protocol"),
    [
        (12, "5"),
        pytest.param(200, "5", marks=pytest.mark.faults),
        pytest.param(100, "3.1.1", marks=pytest.mark.faults),
    ],
)
def test_kills_and_partitions_lose_nothing_and_double_nothing(
    lasting: Mosquitto, proxy: Proxy, tmp_path: Path, faults: int, protocol: str
) -> None:
    mqtt = {
        "host": "127.0.0.1",
        "port": proxy.port,
        "reconnect_max": "1s",
        "keepalive": "2s",
        "protocol": protocol,
    }
    rig = Rig(tmp_path, proxy.port, mqtt=mqtt, storage={"dir": str(tmp_path / "state"), "max_bytes": "64MiB"})
    with running(rig.device, lasting.port):
        storm = Storm(rig, lasting, proxy, seed=faults)
        storm.rage(faults)
        wait_until(lambda: rig.count() >= rig.sent, PATIENCE)
        stored = rig.stored()
        assert sorted(stored) == list(range(rig.sent)), (
            f"{len(stored)} rows of {rig.sent}, {storm.faults} faults"
        )
    assert rig.device.process is not None
    assert rig.device.process.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_a_broker_that_forgets_everything_births_and_states_are_there_again(
    broker: Mosquitto, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, broker.port)
    with running(rig.device, broker.port) as before:
        rig.publish(before, 10)
        rig.answered(before)
        broker.kill()
        broker.start()
        with closing(Listener(broker.port, "edged/rig")) as listener:
            topics = {
                "status",
                *(f"state/{name}" for name in ("model", "training", "drift", "buffer", "config")),
            }
            listener.wait(
                lambda: topics <= {topic for topic, said in listener.messages.items() if said}, PATIENCE
            )
            assert listener.messages["status"][-1]["state"] == "online"
            rig.publish(listener, 10)  # the subscription is there again, too
            listener.wait(lambda: len(listener.messages["predictions"]) >= 10, PATIENCE)
        rig.all_stored(PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_daemons_of_one_name_do_not_fight_and_say_what_is_wrong(
    broker: Mosquitto, tmp_path: Path
) -> None:
    mqtt = {"host": "127.0.0.1", "port": broker.port}
    first, second = (Rig(tmp_path / name, broker.port, mqtt=mqtt).device for name in ("one", "two"))
    with running(first, broker.port):
        second.start()
        try:
            config = loader.load(first.path, {})
            began = time.monotonic()
            wait_until(
                lambda: "does another client call itself edged-rig?" in str(status_of(config)), PATIENCE
            )
            connects = [device.log.read_text().count("mqtt_connected") for device in (first, second)]
            assert max(connects) <= 12 + (time.monotonic() - began) / 2, "the pauses grow"
        finally:
            second.stop()
