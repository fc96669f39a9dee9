"""Half an hour of everything that goes wrong, in random order, around one daemon: `make soak`.

`SOAK_MINUTES` changes how long (30), `EDGED_SEED` what happens when. Flatness is judged from 10 minutes on:
before, caches and the allocator are still on their way to their size.
"""

from __future__ import annotations

import fnmatch
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from edged.domain.stream.schema import Schema
from edged.errors import StorageError
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog
from tests.faults.disks import SYNCS, WRITES, fill, may_mount, mounted
from tests.faults.plant import CLASSES, STREAM, TRAINING, WIDTH, Gateway, kill, rows, trainer, whole
from tests.faults.proxy import Proxy
from tests.faults.rig import restart
from tests.faults.tracing import failing
from tests.mutations import Mutations
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto

MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
SEED = int(os.environ.get("EDGED_SEED", random.randrange(10_000)))
RATE = 100.0
KEY_RATE = 100  # ten times as many at once: what waits during an outage is no flood
MIB = 1024**2
SAMPLES_BYTES, OUTBOX_BYTES, DISK_MIB = 8 * MIB, 2 * MIB, 64
NO_NUMBER = 5000.0  # in both columns of a row's number, which are below 4096: none of ours
SAMPLE_SECONDS = 10.0
PATIENCE = 120.0
ENOUGH_MINUTES = 10.0
SCHEMA = Schema((), WIDTH, "classify", CLASSES)


class Vitals(NamedTuple):
    """How the daemon is at one moment; sizes in bytes."""

    seconds: float
    rss: int
    descriptors: int
    threads: int
    samples: int
    outbox: int
    state: int


ALLOWED = {"rss": 3.0 * MIB, "descriptors": 4.0, "threads": 2.0}
"""Growth over the second half that is still called flat."""


def size(folder: Path, pattern: str = "*") -> int:
    """Bytes of the files below a folder; they come and go meanwhile."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in fnmatch.filter(names, pattern):
            with suppress(OSError):
                total += (Path(directory) / name).stat().st_size
    return total


class Watch:
    """Looks at the daemon every ten seconds, and at what has been stored: each row by its number."""

    def __init__(self, pid: int, state: Path) -> None:
        self.vitals: list[Vitals] = []
        self.numbers: list[int] = []
        self.stored: set[int] = set()
        self._pid = pid
        self._state = state
        self._began = time.monotonic()
        self._seen = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self._ending.wait(SAMPLE_SECONDS):
            self.vitals.append(self._measure())
            self.look()

    def _measure(self) -> Vitals:
        process = Path(f"/proc/{self._pid}")
        lines = (process / "status").read_text(encoding="ascii").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return Vitals(
            time.monotonic() - self._began,
            int(status["VmRSS"].split()[0]) * 1024,
            len(list((process / "fd").iterdir())),
            int(status["Threads"]),
            size(self._state, "samples.db*"),
            size(self._state, "outbox.db*"),
            size(self._state),
        )

    def look(self) -> None:
        """Note the numbers of the rows that have come; before they are evicted again."""
        with self._lock, suppress(StorageError):
            with closing(SampleLog.open(self._state / "samples.db", SCHEMA, readonly=True)) as log:
                upto = log.next_offset()
                parts = log.rows(np.arange(self._seen + 1, upto)).x[:, 4:]
            parts = parts[((parts >= 0) & (parts < 4096)).all(axis=1)].astype(np.int64)
            found = (parts[:, 0] * 4096 + parts[:, 1]).tolist()
            self.numbers += found
            self.stored.update(found)
            self._seen = upto - 1

    def has(self, count: int) -> bool:
        """Whether the rows below this number are all stored."""
        self.look()
        return len(self.stored) >= count

    def close(self) -> None:
        """Look no more."""
        self._ending.set()
        self._thread.join()


class Soak:
    """A daemon under load, and what can be done to it; each fault is a method."""

    def __init__(
        self, device: Device, broker: Mosquitto, proxy: Proxy, watch: Watch, rng: random.Random
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._device, self._broker, self._proxy, self._watch, self._rng = device, broker, proxy, watch, rng
        self._pause = threading.Event()  # never set: something to wait on
        self._gateway = Gateway(broker.port, RATE)
        x = rows(0, 1)[0].tolist()
        self._x = [*x[:4], NO_NUMBER, NO_NUMBER]
        self._garbage = Mutations([{"id": "g", "x": self._x, "y": 1}], rng.randrange(1000))

    def rage(self, minutes: float, faults: list[Callable[[], None]]) -> int:
        """Until time is up and each has happened; how many rows were published."""
        ends, waiting = time.monotonic() + 60.0 * minutes, list(faults)
        while time.monotonic() < ends or waiting:
            if not waiting:
                waiting = list(faults)
            fault = waiting.pop(self._rng.randrange(len(waiting)))
            self._pause.wait(self._rng.uniform(0.0, 5.0))
            fault()
            self.faults[fault.__name__] += 1
            assert self._process.poll() is None, "the daemon has ended"
        return self._quiet()

    @property
    def _process(self) -> Any:
        return self._device.process

    def _quiet(self) -> int:
        """Publish no more; all that went out is the broker's. How many rows."""
        return self._gateway.stop()

    def _go_on(self) -> None:
        self._gateway = Gateway(self._broker.port, RATE, self._gateway.published)

    # ---- faults ----------------------------------------------------------------------------

    def kill_trainer(self) -> None:
        """Wherever it is in its run."""
        found = trainer(self._device, 15.0)
        if found is not None:
            self._pause.wait(self._rng.uniform(0.0, 1.0))
            self.faults["trainers killed"] += kill(found)

    def restart_broker(self) -> None:
        """With messages for the daemon in it; its own publisher would send again, under other ids."""
        self._quiet()
        restart(self._broker, PATIENCE)
        self._go_on()

    def kill_broker(self) -> None:
        """It forgets sessions and what it had taken, which has to be stored before.

        Its store goes, too: it is of the last orderly end, with what was to be delivered at that time.
        """
        published = self._quiet()
        wait_until(lambda: self._watch.has(published), PATIENCE)
        self._broker.kill()
        (self._broker.directory / "mosquitto.db").unlink(missing_ok=True)
        self._broker.start()
        with closing(Listener(self._broker.port, "edged/rig")) as listener:
            births = listener.messages["status"]
            listener.wait(lambda: births and births[-1]["state"] == "online", PATIENCE)
        self._go_on()

    def hang_broker(self) -> None:
        """It stops answering for a moment."""
        os.kill(self._broker.pid, signal.SIGSTOP)
        self._pause.wait(self._rng.uniform(0.5, 5.0))
        os.kill(self._broker.pid, signal.SIGCONT)

    def cut_network(self) -> None:
        """Within a packet."""
        for _ in range(3):
            self._proxy.cut()
            self._pause.wait(self._rng.uniform(0.0, 0.5))

    def fill_disk(self) -> None:
        """To the last byte, for some seconds."""
        ballast = self._device.state.parent / "ballast"
        fill(ballast)
        self._pause.wait(self._rng.uniform(1.0, 8.0))
        ballast.unlink()

    def fail_disk(self) -> None:
        """One kind of call on one kind of file fails for some seconds."""
        state = self._device.state
        calls, error, path = self._rng.choice(
            [
                (WRITES, "ENOSPC", state / "samples.db-wal"),
                (SYNCS, "EIO", state / "samples.db-wal"),
                (SYNCS, "EIO", state / "checkpoints"),
                (SYNCS, "ENOSPC", state / "candidates"),
                (f"{WRITES},{SYNCS}", "EIO", state / "state.db-wal"),
                (f"{WRITES},{SYNCS}", "EIO", state / "outbox.db-wal"),
            ]
        )
        with failing(self._process.pid, calls, error, path):
            self._pause.wait(self._rng.uniform(1.0, 4.0))

    def send_garbage(self) -> None:
        """Payloads that were good before something happened to them."""
        with closing(Listener(self._broker.port, "edged/nobody")) as publisher:
            for payload in self._garbage.take(200):
                publisher.publish("sensors/garbage", payload)

    def flood(self) -> None:
        """One key sends much more than it may."""
        with closing(Listener(self._broker.port, "edged/nobody")) as publisher:
            for number in range(3000):
                publisher.send("sensors/flood", {"id": f"f{number}", "x": self._x, "y": 0})
            publisher.publish("sensors/flood", b"the end")

    def train(self) -> None:
        """By command, which also ends a pause."""
        self._command("train")

    def roll_back(self) -> None:
        """By command; refused where there is nobody to go back to."""
        self._command("rollback")

    def _command(self, name: str) -> None:
        with closing(Listener(self._broker.port, "edged/rig")) as listener:
            listener.publish(f"edged/rig/request/{name}", json.dumps({"transaction": name}))
            answers = listener.messages[f"response/{name}"]
            listener.wait(lambda: answers, PATIENCE)


# ---- what came of it -----------------------------------------------------------------------


def growth(values: NDArray[np.float64]) -> float:
    """Of a series over its length: the median of all pairwise slopes (Theil 1950, Sen 1968) times it."""
    i, j = np.triu_indices(len(values), 1)
    return float(np.median((values[j] - values[i]) / (j - i)) * (len(values) - 1))


def table(vitals: list[Vitals]) -> str:
    """About a dozen moments, evenly spread."""
    chosen = [vitals[round(i)] for i in np.linspace(0, len(vitals) - 1, min(12, len(vitals)))]
    lines = ["  minute  RSS MiB   fds  threads  samples MiB  outbox MiB  state MiB"]
    lines += [
        f"  {v.seconds / 60:6.1f} {v.rss / MIB:8.1f} {v.descriptors:5} {v.threads:8} {v.samples / MIB:12.2f}"
        f" {v.outbox / MIB:11.2f} {v.state / MIB:10.2f}"
        for v in chosen
    ]
    return "\n".join(lines)


def within_caps(vitals: list[Vitals], device: Device) -> None:
    """What docs/promises-disk.md says that there is at most."""
    assert max(v.samples for v in vitals) <= SAMPLES_BYTES * 1.1
    assert max(v.outbox for v in vitals) <= OUTBOX_BYTES
    counts = {
        name: len(list((device.state / name).iterdir())) for name in ("checkpoints", "candidates", "models")
    }
    print(f"directories at the end: {counts}")  # noqa: T201
    # Beside those that are kept: the candidate of an interrupted run, pinned generations, the pointer.
    assert counts["candidates"] <= 2
    assert counts["checkpoints"] <= 3 + 4
    assert counts["models"] <= 10 + 1


@pytest.mark.timeout(60 * MINUTES + 1200)
def test_whatever_happens_nothing_is_lost_and_nothing_grows(make_broker: MakeBroker, tmp_path: Path) -> None:
    print(f"\nseed {SEED}: EDGED_SEED={SEED} repeats this; {MINUTES:g} minutes")  # noqa: T201
    home = tmp_path / "broker"
    home.mkdir()
    broker = make_broker(
        "allow_anonymous true", "persistence true", f"persistence_location {home}/", directory=home
    )
    with ExitStack() as stack:
        disk = stack.enter_context(mounted(tmp_path, DISK_MIB)) if may_mount() else tmp_path
        proxy = stack.enter_context(closing(Proxy(broker.port, SEED)))
        device = Device(
            tmp_path, broker.port, STREAM | {"key_rate": KEY_RATE}, model={"hidden": [8]},
            mqtt={"host": "127.0.0.1", "port": proxy.port, "reconnect_max": "1s", "keepalive": "5s"},
            training=TRAINING
            | {"new_labels": 1000, "steps": 200, "max_failures": 3, "retry_after": "1s"}
            | {"max_write_rate": None},
            gate={"min_holdout": 5, "probation": 50},
            storage={"dir": str(disk / "state"), "max_bytes": SAMPLES_BYTES},
            outbox={"max_bytes": OUTBOX_BYTES},
        )  # fmt: skip
        device.state, device.interpreter = disk / "state", True
        stack.enter_context(running(device, broker.port))
        assert device.process is not None
        watch = stack.enter_context(closing(Watch(device.process.pid, device.state)))
        soak = Soak(device, broker, proxy, watch, random.Random(SEED))
        faults: list[Callable[[], None]] = [
            soak.kill_trainer, soak.restart_broker, soak.kill_broker, soak.hang_broker, soak.cut_network,
            soak.send_garbage, soak.flood, soak.train, soak.roll_back,
        ]  # fmt: skip
        faults += [soak.fill_disk] if may_mount() else []
        faults += [soak.fail_disk] if shutil.which("strace") else []
        published = soak.rage(MINUTES, faults)
        wait_until(lambda: watch.has(published), PATIENCE)
        watch.close()
        assert device.stop() == 0
        watch.look()
        report(soak, watch, published, device)
        within_caps(watch.vitals, device)
        whole(device)
    assert sorted(watch.numbers) == list(range(published)), f"seed {SEED}: lost or stored twice"
    if MINUTES >= ENOUGH_MINUTES:
        half = watch.vitals[len(watch.vitals) // 2 :]
        for name, allowed in ALLOWED.items():
            assert growth(np.array([getattr(v, name) for v in half], np.float64)) <= allowed, f"{name} grows"


def report(soak: Soak, watch: Watch, published: int, device: Device) -> None:
    """The figures of the soak."""
    half = watch.vitals[len(watch.vitals) // 2 :]
    grown = {
        name: growth(np.array([getattr(v, name) for v in half], np.float64)) for name in Vitals._fields[1:]
    }
    with Registry.open(device.state, readonly=True) as registry:
        outcomes = Counter(run.outcome for run in registry.runs(5000))
        reigns = len(registry.reigns(5000))
    doubled = len(watch.numbers) - len(watch.stored)
    print(table(watch.vitals))  # noqa: T201
    print(  # noqa: T201
        f"growth over the second half: RSS {grown['rss'] / MIB:.2f} MiB, {grown['descriptors']:.1f} fds,"
        f" {grown['threads']:.1f} threads, state {grown['state'] / MIB:.2f} MiB\n"
        f"{published} rows, {published - len(watch.stored)} lost, {doubled} stored twice\n"
        f"faults {dict(soak.faults)}\nruns {dict(outcomes)}, {reigns} changes of champion"
    )
