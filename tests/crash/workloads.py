"""What a device does, small enough to try every state of its disk: `python -m tests.crash.workloads`.

Each says with a mark what it has told others to be done. The last argument is a mistake to make, which the
harness must notice, or nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edged.clock import VirtualClock
from edged.domain.audit_chain import AuditEntry
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.domain.commits.commit_group import JoinChanges
from edged.domain.stream.sample import HeldChange, HeldLabel
from edged.errors import StorageError
from edged.storage.files.atomic import Disk, make_directory, publish_file
from edged.storage.files.checksummed_json import seal as seal_json
from edged.storage.journal.audit_log import AuditLog
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.records import Reign
from edged.storage.models.registry import Registry
from edged.storage.outbox.queue import DATABASE as OUTBOX
from edged.storage.outbox.queue import Outbox
from edged.storage.samples import label_history
from edged.storage.samples.label_history import LabelHistory
from tests.crash.learning import Desk
from tests.crash.rig import STREAM, opened, tell
from tests.device.dock import Dock, delivery
from tests.device.gates import Gate
from tests.device.linear import GOOD, candidate

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage
    from edged.storage.models.records import ModelRecord

_T = TypeVar("_T")
SIZE = 8
ATTEMPTS = 5


def persistently(action: Callable[[], _T]) -> _T:
    """Again, when the disk refused: what a daemon's next start or next try does."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except StorageError:
            continue
    return action()


# ---- ingest ----------------------------------------------------------------------------------


def settings(dock: Dock, synchronous: str) -> None:
    """Fold the write-ahead log in often: it takes megabytes otherwise."""
    dock.log._db.execute("PRAGMA wal_autocheckpoint = 12")  # noqa: SLF001
    dock.log._db.execute(f"PRAGMA synchronous = {synchronous}")  # noqa: SLF001


class AcknowledgingDock(Dock):
    """Tells the ids of the samples that the broker was told to forget."""

    def ack(self, deliveries: Sequence[Any]) -> None:
        tell("acknowledged", *(f"s{delivery.mid}" for delivery in deliveries))


def ingest(root: Path, bundle: Path, mistake: str) -> None:
    """Messages through the real ingest stage, with the write-ahead log folded in, and a restart between."""
    state = persistently(partial(opened, root, bundle))
    folder = state.config.storage.dir
    state.close(how=None)
    first = 1
    for batches in (5, 3):
        dock = persistently(partial(AcknowledgingDock, folder, STREAM))
        settings(dock, "NORMAL" if mistake == "normal" else "FULL")
        for _ in range(batches):
            arrived = [
                delivery(n, x=[n, 0.5, 0.25], y=("no", "yes")[n % 2], id=f"s{n}")
                for n in range(first, first + SIZE)
            ]
            persistently(partial(dock.work, arrived))
            first += SIZE
        dock.close()


# ---- several streams ----------------------------------------------------------

STREAMS = ("a", "b", "c")


def stream_dir(root: Path, name: str) -> Path:
    """The state directory of one of several streams."""
    return root / "lib" / "state" / "streams" / name


class StreamDock(Dock):
    """Tells the samples of its stream that the broker was told to forget."""

    def ack(self, deliveries: Sequence[Any]) -> None:
        tell(f"acknowledged-{self.path.parent.name}", *(f"s{delivery.mid}" for delivery in deliveries))


def streams(root: Path, bundle: Path, mistake: str) -> None:
    """Messages of three streams in turn, each with a state directory of its own, and a restart between."""
    for name in STREAMS:
        storage = {"dir": str(stream_dir(root, name))}
        persistently(partial(opened, root, bundle, storage=storage)).close(how=None)
    first = 1
    for _ in range(2):
        docks = [persistently(partial(StreamDock, stream_dir(root, name), STREAM)) for name in STREAMS]
        for dock in docks:
            settings(dock, "NORMAL" if mistake == "normal" and dock is docks[1] else "FULL")
        for dock in (*docks, *docks):
            arrived = [
                delivery(n, x=[n, 0.5, 0.25], y=("no", "yes")[n % 2], id=f"s{n}")
                for n in range(first, first + SIZE)
            ]
            persistently(partial(dock.work, arrived))
            first += SIZE
        for dock in docks:
            dock.close()


# ---- labels that people give ------------------------------------------------------------------

SAID = ("a", "b", "undo b", "hold", "undo a")


def labels(root: Path, bundle: Path, mistake: str) -> None:
    """Intervals in parts of 5 samples, a label that holds, and their undoing, with restarts between."""
    state = persistently(partial(opened, root, bundle))
    folder = state.config.storage.dir
    state.close(how=None)
    label_history.PART = 5
    dock = persistently(partial(AcknowledgingDock, folder, STREAM))
    settings(dock, "FULL")
    for first in (1, 1 + SIZE, 1 + 2 * SIZE):
        dock.clock.advance_to(1000.0 + first)
        arrived = [delivery(n, x=[n, 0.5, 0.25], y="no", id=f"s{n}") for n in range(first, first + SIZE)]
        persistently(partial(dock.work, arrived))
    for name in SAID:
        dock.close()
        persistently(dock.open)
        settings(dock, "NORMAL" if mistake == "normal" else "FULL")
        history = LabelHistory(dock.log, dock.schema, 1 << 20)
        persistently(history.complete)
        if history.find(name) is None:
            persistently(partial(say, dock, history, name))
        persistently(history.complete)
        tell("said", name.replace(" ", "_"))
    dock.close()


def say(dock: Dock, history: LabelHistory, name: str) -> None:
    """One of the commands, up to its first transaction."""
    key = str(dock.log.only_key())
    if name == "a":
        history.begin_interval(name, key, 1001.0 + SIZE, 1100.0, 1.0, 2000.0)
    elif name == "b":
        history.begin_interval(name, key, 1000.0, 1001.0 + SIZE, None, 2000.0)
    elif name == "hold":
        held = HeldLabel(1.0, 2000.0)
        change = HeldChange(name, key, 2000.0, None, held)
        dock.log.commit(None, joined=JoinChanges(held={key: held}, said=[change]))
    else:
        history.begin_undo(1 if name == "undo a" else 2, name)


# ---- samples of several messages ---------------------------------------------------------------

JOINED: dict[str, Any] = {
    "topic": "s/m",
    "key": {"fixed": "k"},
    "classes": ["no", "yes"],
    "features": ["a", {"name": "b", "topic": "s/b"}, "c"],
    "missing": {"fill": "last"},
    "label": {"topic": "s/label", "hold": True},
}
PARTS = 60


def part(n: int) -> ReceivedMessage:
    """Message `n`: one feature, two of them, or a label that holds."""
    topic, value = (("s/m", {"a": n, "c": n / 2}), ("s/b", n), ("s/label", ("no", "yes")[n % 2]))[n % 3]
    return delivery(
        n, topic, payload=value.encode() if isinstance(value, str) else json.dumps(value).encode()
    )


def joined(root: Path, bundle: Path, mistake: str) -> None:
    """Messages that bring a part of a sample each, some of which make none, and restarts between."""
    state = persistently(partial(opened, root, bundle, stream=JOINED))
    folder = state.config.storage.dir
    state.close(how=None)
    dock = persistently(partial(AcknowledgingDock, folder, JOINED))
    for first in range(1, PARTS, 3):
        settings(dock, "NORMAL" if mistake == "normal" else "FULL")
        persistently(partial(dock.work, [part(n) for n in range(first, first + 3)]))
        if first % 4 == 0:
            dock.close()
            persistently(dock.open)
    dock.close()


# ---- checkpoints -----------------------------------------------------------------------------


class NamesNotSynced(Disk):
    """The mistake of forgetting that a name is not durable before its directory is."""

    def sync(self, path: Path) -> None:
        """Files only."""
        if not path.is_dir():
            super().sync(path)


def content(number: int) -> bytes:
    """What the engine's file of a generation holds; more than one sector."""
    return bytes([number]) * 1500


def checkpoints(root: Path, _bundle: Path, mistake: str) -> None:
    """Generations as a trainer makes them, the oldest pruned."""
    folder = root / "lib" / "state" / "checkpoints"
    disk = NamesNotSynced() if mistake == "names" else Disk()
    if mistake == "directories":
        folder.mkdir(parents=True)  # and no sync of where they are named
    store = Checkpoints(folder, 2, disk=disk)
    for number in range(1, 6):
        try:
            staging = store.stage()
            (staging / "checkpoint").write_bytes(content(number))
            arrays = {"memory_ids": np.arange(number, dtype=np.int64)}
            tell(
                "generation", store.publish(staging, {"learner": {"consumed": number, "plan": None}}, arrays)
            )
        except StorageError:
            continue


# ---- models ----------------------------------------------------------------------------------


class PointerFirst(Registry):
    """The mistake of naming a model as champion while its files may still get lost."""

    def add(self, *arguments: Any, **named: Any) -> ModelRecord:
        """Point to the version that comes next, and only then store it."""
        version = max(record.version for record in self.records()) + 1
        reign = Reign(1.0, version, self.champion(), "soon")
        publish_file(self._models / "champion", seal_json(asdict(reign)))
        return super().add(*arguments, **named)


def crowned(gate: Gate, run: int) -> int:
    """A candidate through the gate; its version. One that the disk does not take is refused there."""
    result = candidate(gate.candidates, run, GOOD)
    verdict, model = gate.judge(result, first=True)
    if model is None:
        raise StorageError("; ".join(verdict.reasons))
    gate.models.set_champion(model.version, f"run {run}")
    gate.champion = model
    return model.version


def models(root: Path, bundle: Path, mistake: str) -> None:
    """The first start, then candidates through the gate's own code: stored, crowned, pruned."""
    state = persistently(partial(opened, root, bundle))
    folder = state.config.storage.dir
    state.close(how=None)
    gate = persistently(partial(Gate, folder, GOOD, samples=0))
    tell("champion", gate.champion.version)
    if mistake in ("names", "pointer"):
        gate.registry.close()
        disk = NamesNotSynced() if mistake == "names" else Disk()
        kind = PointerFirst if mistake == "pointer" else Registry
        gate.registry = kind.open(folder, disk=disk)
        gate.open_parts()
    for run in range(1, 4):
        try:
            version = crowned(gate, run)
            # On a disk with faults the pointer may have moved without being durable: that is no promise.
            tell("tried" if mistake == "faults" else "champion", version)
            gate.registry.prune(2)
        except StorageError:
            if mistake != "faults":
                raise
    gate.close()


# ---- commands that train ------------------------------------------------------------------------


def train(root: Path, bundle: Path, mistake: str) -> None:
    """Commands whose runs wait for each other, with a restart while one of them waits."""
    desk = persistently(partial(Desk, root, bundle, forgets=mistake == "forgets"))
    desk.feed(30)
    for name, steps in (("a", 6), ("b", 4)):
        desk.ask(name, steps)
    desk.work()
    desk.ask("c", 2)
    desk.close()
    desk = persistently(partial(Desk, root, bundle, forgets=mistake == "forgets"))
    desk.dispatcher.resume()
    desk.ask("d", 8)
    desk.work()
    desk.close()


# ---- the audit log ------------------------------------------------------------------------------


class FilesNotSynced(Disk):
    """The mistake of forgetting that content is not durable before its file is."""

    def sync(self, path: Path) -> None:
        """Directories only."""
        if path.is_dir():
            super().sync(path)


def audit(root: Path, _bundle: Path, mistake: str) -> None:
    """Changes with their entries, which move to files of a few lines, and a restart between."""
    folder = root / "lib" / "state"
    make_directory(folder)
    disk = FilesNotSynced() if mistake == "content" else Disk()
    for first in (0, 9):
        log = AuditLog(folder, max_bytes=700, disk=disk)
        with persistently(partial(Registry.open, folder)) as registry:
            for n in range(first, first + 9):
                persistently(partial(registry.record_audit, AuditEntry(n, "configuration"), change=n))
                tell("changed", n)
                if n % 3:
                    persistently(partial(log.drain, registry))
                    tell("drained", n)


# ---- the outbox ---------------------------------------------------------------------------------


def outbox(root: Path, _bundle: Path, mistake: str) -> None:
    """Messages that wait, some of which the broker has, and a restart between."""
    folder = root / "lib" / "state"
    make_directory(folder)
    for first in (0, 12):
        with closing(persistently(partial(opened_outbox, folder))) as box:
            if mistake == "normal":
                box._db.execute("PRAGMA synchronous = NORMAL")  # noqa: SLF001
            for n in range(first, first + 12, 3):
                put = [(OutboxMessage(MessageKind.EVENT, "t", b"%d" % m), False) for m in range(n, n + 3)]
                persistently(partial(box.put, put))
                tell("kept", *range(n, n + 3))
                taken = box.reserve(1, 1 << 20)
                tell("sent", *(int(message.payload) for _, message in taken))
                persistently(partial(box.remove, [key for key, _ in taken]))
                tell("removed", *(int(message.payload) for _, message in taken))


def opened_outbox(folder: Path) -> Outbox:
    """The outbox of a device that starts."""
    return Outbox.open(folder / OUTBOX, max_bytes=1 << 20, max_age=1e9, clock=VirtualClock(1.8e9))


WORKLOADS = {
    "ingest": ingest, "checkpoints": checkpoints, "models": models, "train": train, "audit": audit,
    "outbox": outbox, "labels": labels, "joined": joined, "streams": streams,
}  # fmt: skip

if __name__ == "__main__":
    place, made = Path(sys.argv[1]), Path(sys.argv[2])
    WORKLOADS[sys.argv[3]](place, made, sys.argv[4])
