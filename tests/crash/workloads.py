"""What a device does, small enough to try every state of its disk: `python -m tests.crash.workloads`.

Each says with a mark what it has told others to be done. The last argument is a mistake to make, which the
harness must notice, or nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edged.clock import VirtualClock
from edged.config import Config
from edged.device.startup.open_state import open_state
from edged.errors import StorageError
from edged.storage.files.atomic import Disk, publish_file
from edged.storage.files.checksummed_json import seal as seal_json
from edged.storage.models.bundles import Bundle, Tensor, seal
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.records import Reign
from edged.storage.models.registry import Registry
from tests.crash.operations import MARK
from tests.device.dock import Dock, delivery
from tests.device.gates import Gate
from tests.device.linear import GOOD, WIDTH, candidate, write

if TYPE_CHECKING:
    from edged.device.startup.open_state import OpenState
    from edged.storage.models.records import ModelRecord

_T = TypeVar("_T")
STREAM: dict[str, Any] = {"features": WIDTH, "classes": ["no", "yes"], "label": "y", "id": "id"}
SIZE = 8
ATTEMPTS = 5


def make_bundle(folder: Path) -> None:
    """A bundle that serves and cannot train: all that a start needs."""
    folder.mkdir()
    write(folder / "inference_model.onnx", GOOD)
    described = Bundle(
        folder, "0", "cross_entropy", "adamw", Tensor("x", ("n", WIDTH)), Tensor("y", ("n", 2)),
        Tensor("label", ("n",), "int64"), (), (), engines=(),
    )  # fmt: skip
    seal(described, ["inference_model.onnx"])


def config_of(root: Path, bundle: Path) -> Config:
    """A device whose state lies in `root`, below a directory that the daemon makes itself."""
    return Config.model_validate(
        {
            "device": {"id": "rig"},
            "mqtt": {"host": "localhost"},
            "stream": {"topic": "s/#", **STREAM},
            "model": {"bundle": str(bundle)},
            "storage": {"dir": str(root / "lib" / "state")},
        }
    )


def opened(root: Path, bundle: Path) -> OpenState:
    """A start of the daemon, as far as its files go."""
    return open_state(config_of(root, bundle), VirtualClock(1000.0), check_seconds=60.0)


def tell(*words: object) -> None:
    """Somebody else relies on it from now on."""
    os.write(1, MARK + " ".join(str(word) for word in words).encode() + b"\n")


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


WORKLOADS = {"ingest": ingest, "checkpoints": checkpoints, "models": models}

if __name__ == "__main__":
    place, made = Path(sys.argv[1]), Path(sys.argv[2])
    WORKLOADS[sys.argv[3]](place, made, sys.argv[4])
