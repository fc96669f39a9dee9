"""Crash consistency: the daemon's real code, on every state in which a power cut may leave its disk."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.checks import CHECKS
from tests.crash.operations import Sync, record
from tests.crash.rig import make_bundle
from tests.crash.states import after_promises, final, states

if TYPE_CHECKING:
    from tests.crash.operations import History
    from tests.crash.states import State

pytestmark = pytest.mark.timeout(600)  # programs under strace, on machines that do other things, too
SEED = int(os.environ.get("EDGED_SEED", "1"))
MISTAKES = [
    ("ingest", "normal"),
    ("checkpoints", "names"),
    ("checkpoints", "directories"),
    ("models", "names"),
    ("models", "pointer"),
    ("train", "forgets"),
    ("audit", "content"),
    ("outbox", "normal"),
    ("labels", "normal"),
    ("joined", "normal"),
    ("streams", "normal"),
]

OTHERS = [("ingest", 15), ("checkpoints", 60), ("models", 15), ("train", 20), ("audit", 60), ("outbox", 60),
          ("labels", 15), ("joined", 20), ("streams", 15)]  # fmt: skip


class Laboratory:
    """Where programs are recorded, and states made real; in memory, since nothing of it is to last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "bundle"
        self.recorded = 0
        make_bundle(self.bundle)

    def record(self, name: str, mistake: str = "", inject: str | None = None) -> History:
        """The operations of one workload; the files it left must be what the operations say."""
        self.recorded += 1
        root = self.folder / f"{name}-{self.recorded}"
        history = record(root, str(self.bundle), name, mistake, inject=inject)
        left = {
            str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
            for path in root.rglob("*")
            if not path.name.endswith("-shm")
        }
        assert final(history) == left, "the recording is not complete"
        return history

    def try_all(self, name: str, found: Iterable[State], *, stop: bool = False) -> tuple[int, list[str]]:
        """How many states were tried, and in which a promise was broken; with `stop` only the first."""
        broken: list[str] = []
        tried = 0
        for state in found:
            root = self.folder / "state"
            state.write(root)
            try:
                CHECKS[name](root, self.bundle, state.promises)
            except Exception as problem:  # noqa: BLE001  whatever goes wrong here is a promise broken
                broken.append(f"seed {SEED}: {name}: {state}: {problem!r}")
            finally:
                shutil.rmtree(root)
            tried += 1
            if broken and stop:
                break
        return tried, broken


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    memory = Path("/dev/shm")  # noqa: S108  nothing to hide there
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Laboratory(Path(folder))


def some(history: History, rng: random.Random, others: int) -> list[int]:
    """The points after each promise, and some others."""
    points = range(len(history.operations) + 1)
    return [*after_promises(history), *rng.sample(points, min(others, len(points)))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "others"), OTHERS)
def test_no_power_cut_breaks_a_promise(name: str, others: int, laboratory: Laboratory) -> None:
    history, rng = laboratory.record(name), random.Random(SEED)
    assert after_promises(history)
    tried, broken = laboratory.try_all(name, states(history, some(history, rng, others), rng, each=4))
    assert broken == []
    assert tried >= 40


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_mistake_is_noticed(name: str, mistake: str, laboratory: Laboratory) -> None:
    history, rng = laboratory.record(name, mistake), random.Random(SEED)
    points = some(history, rng, len(history.operations))
    _, broken = laboratory.try_all(name, states(history, points, rng, each=2), stop=True)
    assert broken, f"{mistake}: nothing was noticed"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call", "number"), [("ingest", "fdatasync", 25), ("models", "fsync", 20)])
def test_after_a_sync_that_failed_nothing_is_believed(
    name: str, call: str, number: int, laboratory: Laboratory
) -> None:
    history = laboratory.record(name, "faults", f"{call}:error=EIO:when={number}")
    assert [operation.failed for operation in history.operations if isinstance(operation, Sync)].count(
        True
    ) == 1
    rng = random.Random(SEED)
    _, broken = laboratory.try_all(name, states(history, some(history, rng, 4), rng, each=3))
    assert broken == []


# ---- the long form: `make test-faults` --------------------------------------------------------


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", CHECKS)
def test_thousands_of_power_cuts_break_no_promise(name: str, laboratory: Laboratory) -> None:
    """All together more than 38,000 states of the disk."""
    history, rng = laboratory.record(name), random.Random(SEED)
    points = range(len(history.operations) + 1)
    tried, broken = laboratory.try_all(name, states(history, points, rng, each=32))
    print(f"\n{name}: {tried} states of the disk")  # noqa: T201
    assert broken == []
    assert tried >= 300


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("name", "call"),
    [("ingest", "fdatasync"), ("models", "fdatasync"), ("models", "fsync"), ("checkpoints", "fsync")],
)
def test_whichever_sync_fails_no_promise_is_broken(name: str, call: str, laboratory: Laboratory) -> None:
    counts, number = 0, 0
    while True:
        number += 1
        history = laboratory.record(name, "faults", f"{call}:error=EIO:when={number}")
        if not any(isinstance(operation, Sync) and operation.failed for operation in history.operations):
            break
        rng = random.Random(SEED + number)
        tried, broken = laboratory.try_all(name, states(history, some(history, rng, 5), rng, each=4))
        assert broken == []
        counts += tried
    print(f"\n{name}: {number - 1} failures of {call}, {counts} states of the disk")  # noqa: T201
    assert number > 10
