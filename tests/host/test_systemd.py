"""The notification protocol against a real datagram socket, and the watchdog over it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.clock import VirtualClock
from edged.errors import ConfigError
from edged.host.systemd import Notifier, Watchdog, watchdog_interval


class Manager:
    """The service manager's end of the protocol: a bound datagram socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(10)

    def heard(self) -> dict[str, str]:
        message = self._socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in message.split("\n"))

    def waiting(self) -> int:
        """How many messages have arrived and not been read; sending is synchronous, so none is under way."""
        self._socket.setblocking(False)
        count = 0
        try:
            while self._socket.recv(4096):
                count += 1
        except BlockingIOError:
            return count
        finally:
            self._socket.settimeout(10)
        return count

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def outside_of_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    found = Manager(path if request.param == "path" else f"@edged-test{path}")
    yield found
    found.close()


def notifier(manager: Manager) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": manager.address})


def watched(manager: Manager, *loops: str, interval: float | None = 8.0) -> tuple[Watchdog, VirtualClock]:
    clock = VirtualClock()
    return Watchdog(notifier(manager), loops, interval, clock), clock


def test_ready_with_a_status(manager: Manager) -> None:
    assert notifier(manager).ready("serving v3")
    assert manager.heard() == {"READY": "1", "STATUS": "serving v3"}


def test_status_alone(manager: Manager) -> None:
    assert notifier(manager).status("training")
    assert manager.heard() == {"STATUS": "training"}


def test_a_line_break_in_a_status_does_not_begin_a_field(manager: Manager) -> None:
    notifier(manager).status("bad topic\nWATCHDOG=1")
    assert manager.heard() == {"STATUS": "bad topic WATCHDOG=1"}


def test_reloading_carries_the_monotonic_time_in_microseconds(manager: Manager) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier(manager).reloading("reading the configuration")
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    heard = manager.heard()
    assert before <= int(heard.pop("MONOTONIC_USEC")) <= after
    assert heard == {"RELOADING": "1", "STATUS": "reading the configuration"}


def test_stopping(manager: Manager) -> None:
    notifier(manager).stopping()
    assert manager.heard() == {"STOPPING": "1"}


def test_the_address_comes_from_the_environment(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    assert Notifier().watchdog()
    assert manager.heard() == {"WATCHDOG": "1"}


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_service_manager_nothing_happens(environ: dict[str, str]) -> None:
    silent = Notifier(environ)
    assert not silent.ready("here")
    assert silent.problem == ""


def test_a_manager_that_is_gone_is_remembered_and_not_raised(manager: Manager, tmp_path: Path) -> None:
    unheard = Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert not unheard.ready()
    assert unheard.problem.endswith("nobody: No such file or directory")
    unheard.address = manager.address
    assert unheard.ready()
    assert unheard.problem == ""


def test_the_interval_is_in_seconds() -> None:
    assert watchdog_interval({"WATCHDOG_USEC": "30000000"}) == 30.0


def test_the_interval_is_meant_for_one_process() -> None:
    environ = {"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "77"}
    assert watchdog_interval(environ, pid=77) == 1.5
    assert watchdog_interval(environ, pid=78) is None


@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_PID": "1"}])
def test_no_interval_without_a_watchdog(environ: dict[str, str]) -> None:
    assert watchdog_interval(environ) is None


@pytest.mark.parametrize(
    ("name", "text"), [("WATCHDOG_USEC", "30s"), ("WATCHDOG_USEC", ""), ("WATCHDOG_PID", "-1")]
)
def test_a_broken_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"environment variable {name}: expected a whole number.*\("):
        watchdog_interval({"WATCHDOG_USEC": "1000000", name: text})


def test_the_keep_alive_waits_for_the_last_loop(manager: Manager) -> None:
    watchdog, clock = watched(manager, "ingest", "serve")
    clock.advance_to(2.0)
    assert not watchdog.beat("ingest")
    assert watchdog.beat("serve")
    assert manager.heard() == {"WATCHDOG": "1"}


def test_keep_alives_are_rate_limited(manager: Manager) -> None:
    watchdog, clock = watched(manager, "serve", interval=8.0)
    sent = 0
    for quarters in range(1, 161):
        clock.advance_to(quarters / 4)
        sent += watchdog.beat("serve")
        assert manager.waiting() == (quarters % 8 == 0)
    assert sent == 20


def test_a_stuck_loop_silences_the_watchdog(manager: Manager) -> None:
    watchdog, clock = watched(manager, "ingest", "serve", "schedule", interval=8.0)
    for second in range(1, 20):
        clock.advance_to(float(second))
        for name in ("ingest", "serve", "schedule"):
            watchdog.beat(name)
    assert manager.waiting() == 9
    sent = []
    for second in range(20, 40):  # serve is stuck from here on; it was seen since the message at 18
        clock.advance_to(float(second))
        sent += [second for name in ("ingest", "schedule") if watchdog.beat(name)]
    assert sent == [20]
    assert manager.waiting() == 1


def test_a_manager_that_does_not_read_delays_no_loop(manager: Manager) -> None:
    watchdog, clock = watched(manager, "serve", interval=4.0)
    start = time.monotonic()
    for second in range(1, 1001):
        clock.advance_to(float(second))
        watchdog.beat("serve")
    assert time.monotonic() - start < 1.0
    assert 0 < manager.waiting() < 1000
    clock.advance_to(1001.0)
    assert watchdog.beat("serve")


def test_a_loop_that_comes_back_brings_the_keep_alive_back(manager: Manager) -> None:
    watchdog, clock = watched(manager, "ingest", "serve")
    clock.advance_to(30.0)
    assert not watchdog.beat("ingest")
    assert watchdog.beat("serve")
    assert manager.waiting() == 1


def test_without_an_interval_beats_cost_nothing_and_send_nothing(manager: Manager) -> None:
    watchdog, clock = watched(manager, "serve", interval=None)  # as outside of systemd
    clock.advance_to(1000.0)
    assert not watchdog.beat("serve")
    assert manager.waiting() == 0
    assert watchdog.period is None


def test_the_interval_of_this_process_is_the_default(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "8000000")
    watchdog, _ = watched(manager, "serve", interval=None)
    assert watchdog.period == 2.0


def test_an_unknown_loop_is_a_mistake(manager: Manager) -> None:
    watchdog, _ = watched(manager, "serve")
    with pytest.raises(KeyError, match="sevre"):
        watchdog.beat("sevre")


def test_a_watchdog_without_loops_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one loop"):
        Watchdog(Notifier({}), [], 1.0)


def test_loops_beat_from_their_own_threads(manager: Manager) -> None:
    interval = 0.2
    names = [f"loop{i}" for i in range(4)]
    watchdog = Watchdog(notifier(manager), names, interval)
    done = threading.Event()

    def turn(name: str) -> None:
        while not done.wait(0.005):
            watchdog.beat(name)

    threads = [threading.Thread(target=turn, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    start = time.monotonic()
    heard = [manager.heard() for _ in range(5)]
    elapsed = time.monotonic() - start
    done.set()
    for thread in threads:
        thread.join()
    assert heard == [{"WATCHDOG": "1"}] * 5
    assert elapsed >= 5 * interval / 4 - 0.02
