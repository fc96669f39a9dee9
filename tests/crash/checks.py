"""What must hold in any state of the disk: the daemon starts on it, then its promises are looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.config import GateConfig
from edged.domain.stream.sample import LabelReading
from edged.errors import CorruptError
from edged.storage.files.atomic import verify_directory
from edged.storage.files.checksummed_json import read_sealed
from edged.storage.models.checkpoints import Checkpoints
from tests.crash.workloads import content, opened
from tests.device.gates import Gate
from tests.device.learning_rig import batch
from tests.device.linear import classes, inputs

if TYPE_CHECKING:
    from edged.device.startup.open_state import OpenState
    from tests.crash.operations import Mark

    Promises = tuple[Mark, ...]
    Check = Callable[[Path, Path, Promises], None]


def promised(promises: Promises, what: str) -> list[str]:
    """Everything that was told under one word, oldest first."""
    return [word for mark in promises if mark.words[0] == what for word in mark.words[1:]]


# ---- samples ---------------------------------------------------------------------------------


def check_ingest(root: Path, bundle: Path, promises: Promises) -> None:
    """Every acknowledged sample is there with its content, the counts are exact, and more can come."""
    state = opened(root, bundle)
    try:
        check_samples(state, [int(name[1:]) for name in promised(promises, "acknowledged")])
        log = state.samples
        x = inputs(3)
        log.commit(batch(log, x, classes(x)))
    finally:
        state.close()


def check_samples(state: OpenState, numbers: list[int]) -> None:
    """The samples `s<n>` with `n` as their first value are in the log."""
    offsets = state.samples.find_many([LabelReading(0.0, id=f"s{number}") for number in numbers])
    lost = [number for number, offset in zip(numbers, offsets, strict=True) if offset is None]
    assert not lost, f"acknowledged samples lost: {lost}; repaired {state.recovery.repaired}"
    found = state.samples.rows(np.array(offsets, np.int64))
    assert found.x[:, 0].astype(int).tolist() == numbers, "acknowledged samples have another content"
    counters = state.samples.counters()
    assert counters.rows == counters.samples, "the counts do not agree"
    assert counters.samples >= len(numbers)


# ---- checkpoints -----------------------------------------------------------------------------


def check_checkpoints(root: Path, bundle: Path, promises: Promises) -> None:
    """The newest generation is whole and not older than the one that was reported; a next one can be made."""
    state = opened(root, bundle)
    state.close()
    store = Checkpoints(state.config.storage.dir / "checkpoints", 2)
    newest = store.latest()
    assert store.damaged == [], f"generations {store.damaged} cannot be read"
    reported = max(map(int, promised(promises, "generation")), default=0)
    assert (newest.number if newest else 0) >= reported, f"generation {reported} was reported and is lost"
    if newest is not None:
        consumed = newest.state["learner"]["consumed"]
        assert (newest.path / "checkpoint").read_bytes() == content(consumed)
        assert newest.arrays["memory_ids"].tolist() == list(range(consumed))
    staging = store.stage()
    assert store.publish(staging, {}, {}) == max([0, *store.numbers()])


# ---- models ----------------------------------------------------------------------------------


class Restarted(Gate):
    """The promotion side of a daemon that has just been started on what is there."""

    def __init__(self, state: OpenState) -> None:
        self.folder = state.config.storage.dir
        self.candidates = self.folder / "candidates"
        self.settings = GateConfig(latency=1.0).model_dump()
        self.log, self.registry = state.samples, state.registry
        self.open_parts()


def check_models(root: Path, bundle: Path, promises: Promises) -> None:
    """The pointer names a whole model, the promised one or a later one serves, and another can follow."""
    check_pointer(root / "lib" / "state" / "models")
    state = opened(root, bundle)
    try:
        gate = Restarted(state)
        served = gate.champion = gate.models.boot(state.bundle.inference_model)
        assert np.isfinite(served.model.predict(inputs(4))).all()
        champions = [r.version for r in state.registry.records() if r.status == "champion"]
        assert champions == [served.version] == [state.registry.champion()]
        crowned = max(map(int, promised(promises, "champion")), default=0)
        assert served.version >= crowned, f"model {crowned} was crowned, {served.version} serves"
        first = state.registry.get(served.version).source == "bundle"
        assert not (first and crowned not in (0, served.version)), (
            "the base model serves in a champion's place"
        )
        assert gate.crowned(1.0, 99).version > served.version
    finally:
        state.close()


def check_pointer(models: Path) -> None:
    """Before anything is repaired: what the pointer names is there and whole."""
    try:
        version = read_sealed(models / "champion")["version"]
    except CorruptError:
        return  # no pointer yet, or none that anybody would follow
    verify_directory(models / str(version))


CHECKS: dict[str, Check] = {
    "ingest": check_ingest,
    "checkpoints": check_checkpoints,
    "models": check_models,
}
