"""What must hold in any state of the disk: the daemon starts on it, then its promises are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.audit_chain import AuditEntry
from edged.domain.stream.sample import LabelReading
from edged.errors import CorruptError
from edged.storage.files.atomic import verify_directory
from edged.storage.files.checksummed_json import read_sealed
from edged.storage.journal.audit_log import AuditLog, read_audit
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from edged.storage.samples.label_history import LabelHistory
from tests.crash.learning import Desk
from tests.crash.rig import opened
from tests.crash.workloads import (
    JOINED,
    PARTS,
    SAID,
    SIZE,
    STREAMS,
    content,
    opened_outbox,
    stream_dir,
)
from tests.device.dock import Dock, delivery
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


# ---- several streams, and models by key ----------------------------------------------------------


def check_streams(root: Path, bundle: Path, promises: Promises) -> None:
    """Of each stream every acknowledged sample is there with its content, and more can come."""
    for name in STREAMS:
        state = opened(root, bundle, storage={"dir": str(stream_dir(root, name))})
        try:
            check_samples(state, [int(word[1:]) for word in promised(promises, f"acknowledged-{name}")])
            x = inputs(3)
            state.samples.commit(batch(state.samples, x, classes(x)))
        finally:
            state.close()


# ---- labels that people give ------------------------------------------------------------------


def check_labels(root: Path, bundle: Path, promises: Promises) -> None:
    """Each command is there with all that it did, or it is not; those that were answered are."""
    state = opened(root, bundle)
    try:
        log = state.samples
        history = LabelHistory(log, state.config.stream.to_schema(), 1 << 20)
        history.complete()
        known = [name for name in SAID if history.find(name) is not None]
        assert known == list(SAID[: len(known)]), known
        said = [name.replace("_", " ") for name in promised(promises, "said")]
        assert set(said) <= set(known), f"lost: {set(said) - set(known)}"
        old, middle, new = EXPECTED[known[-1] if known else ""]
        expected = dict(
            zip(range(1, 1 + 3 * SIZE), [old] * SIZE + [middle] * SIZE + [new] * SIZE, strict=True)
        )
        with log.looking() as db:
            stored = db.execute("SELECT offset, y, holdout AND label_seq IS NOT NULL FROM samples").fetchall()
        acknowledged = {int(name[1:]) for name in promised(promises, "acknowledged")}
        assert acknowledged <= {row[0] for row in stored}, "acknowledged samples lost"
        assert {offset: y for offset, y, _ in stored} == {row[0]: expected[row[0]] for row in stored}
        counters = log.counters()
        assert counters.holdout_labels == sum(row[2] for row in stored)
        assert counters.labels == sum(row[1] is not None for row in stored)
        assert bool(log.held_labels()) == ("hold" in known)
    finally:
        state.close()


EXPECTED: dict[str, tuple[float | None, float | None, float | None]] = {
    "": (0.0, 0.0, 0.0), "a": (0.0, 1.0, 1.0), "b": (None, None, 1.0), "undo b": (0.0, 1.0, 1.0),
    "hold": (0.0, 1.0, 1.0), "undo a": (0.0, 0.0, 0.0),
}  # fmt: skip
"""Labels of the three batches after each command."""


# ---- samples of several messages ---------------------------------------------------------------


def check_joined(root: Path, bundle: Path, promises: Promises) -> None:
    """Samples, newest values and label are those after the same message, none before the acknowledged."""
    state = opened(root, bundle, stream=JOINED)
    acknowledged = max((int(name[1:]) for name in promised(promises, "acknowledged")), default=0)
    with state.samples.looking() as db:
        rows = db.execute("SELECT x, y FROM samples ORDER BY offset").fetchall()
    stored = [(*np.frombuffer(x, "<f4").tolist(), y) for x, y in rows]
    held = state.samples.held_labels()
    state.close()
    dock = Dock(state.config.storage.dir, JOINED)
    try:
        dock.work([delivery(PARTS + 10, "s/m", payload=b'{"linkquality": 1, "a": 0}')])
        newest = [batch.x[0].tolist()[1:] for batch in dock.batches]
        after = (stored, newest, [label.label for label in held.values()])
        possible = [n for n in range(acknowledged, PARTS + 3) if after == AFTER[n]]
        assert possible, f"acknowledged up to {acknowledged}, {len(stored)} samples, newest {after[1:]}"
    finally:
        dock.close()


def _after_each() -> list[tuple[list[tuple[float | None, ...]], list[list[float]], list[float]]]:
    """After each message: the samples, the newest values of `b` and `c` if all are known, and the label."""
    a = b = c = 0.0
    label: list[float] = []
    made: list[tuple[float | None, ...]] = []
    found: list[Any] = [([], [], [])]
    for n in range(1, PARTS + 3):
        if n % 3 == 0:
            a, c = float(n), n / 2
        elif n % 3 == 1:
            b = float(n)
        else:
            label = [float(n % 2)]
        if n % 3 != 2 and n >= 3:  # the first with all features
            made.append((a, b, c, *label))
        found.append((list(made), [[b, c]] if n >= 3 else [], label))
    return found


AFTER = _after_each()


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
        self.settings = {"latency": 1.0}
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


# ---- commands that train ------------------------------------------------------------------------


def check_train(root: Path, bundle: Path, promises: Promises) -> None:
    """Each accepted command is answered with its own run, once, and no step is done twice."""
    desk = Desk(root, bundle)
    try:
        if desk.state.samples.counters().samples == 0:
            desk.feed(30)
        desk.dispatcher.resume()
        desk.ask("new", 10)
        desk.work()
        desk.audit.drain(desk.state.registry)
        commands = {record.id: record for record in desk.state.registry.commands()}
        accepted = {f'train:"{name}"' for name in promised(promises, "accepted")}
        assert accepted <= set(commands), f"accepted and lost: {accepted - set(commands)}"
        answers = {key: (record.answer or {}) for key, record in commands.items()}
        assert {answer["state"] for answer in answers.values()} == {"successful"}, answers
        results: dict[str, Any] = {key: answer["data"] for key, answer in answers.items()}
        steps = {key: STEPS[key] for key in results}
        assert {key: result["steps"] for key, result in results.items()} == steps
        assert len({result["run"] for result in results.values()}) == len(results), "a run told of twice"
        assert all(result["verdict"] is not None for result in results.values()), "not judged"
        for key, told in zip(*[iter(promised(promises, "answered"))] * 2, strict=True):
            result = results[f'train:"{key}"']
            assert (result["steps"], result["run"]) == (json.loads(told)["steps"], json.loads(told)["run"])
        newest = Checkpoints(desk.folder / "checkpoints", 2).latest()
        assert newest is not None
        assert newest.state["learner"]["total_steps"] == sum(steps.values()), "a step was done twice"
        assert desk.state.registry.champion() == max(r.version for r in desk.state.registry.records())
        left = [path for path in desk.folder.rglob(".staging-*") if path.parent.name != "candidates"]
        assert left == []
        entries = [logged.entry for logged in read_audit(desk.folder, running=False)[0]]
        ids = [entry.id for entry in entries if entry.command is not None]
        assert len(ids) == len(set(ids)), "a command is in the audit log twice"
    finally:
        desk.state.close()


STEPS = {f'train:"{name}"': steps for name, steps in {"a": 6, "b": 4, "c": 2, "d": 8, "new": 10}.items()}


# ---- the audit log ------------------------------------------------------------------------------


def check_audit(root: Path, _bundle: Path, promises: Promises) -> None:
    """Each change has one entry, in order; those that had left the database are in the file."""
    folder = root / "lib" / "state"
    folder.mkdir(parents=True, exist_ok=True)
    log = AuditLog(folder, max_bytes=700)
    with Registry.open(folder) as registry:
        last = registry.get_value("change", -1)
        assert last >= max(map(int, promised(promises, "changed")), default=-1)
        in_file = [logged.entry.ts for logged in read_audit(folder, running=True)[0]]
        assert max(in_file, default=-1) >= max(map(int, promised(promises, "drained")), default=-1)
        registry.record_audit(AuditEntry(last + 1, "configuration"))
        log.drain(registry)
    entries = read_audit(folder, running=False)[0]
    numbers = [int(logged.entry.ts) for logged in entries]
    assert numbers == list(range(numbers[0], last + 2)), "a gap or a duplicate"
    assert [logged.to_json()["seq"] for logged in entries] == [number + 1 for number in numbers]


# ---- the outbox ---------------------------------------------------------------------------------


def check_outbox(root: Path, _bundle: Path, promises: Promises) -> None:
    """What was kept waits once, unless the broker may have it; what the broker has is not sent again."""
    folder = root / "lib" / "state"
    folder.mkdir(parents=True, exist_ok=True)
    with closing(opened_outbox(folder)) as box:
        waiting = [int(message.payload) for _, message in box.reserve(1000, 1 << 20)]
    assert len(waiting) == len(set(waiting)), "a message waits twice"
    kept, sent, removed = (set(map(int, promised(promises, what))) for what in ("kept", "sent", "removed"))
    assert kept - sent <= set(waiting), f"lost: {sorted(kept - sent - set(waiting))}"
    assert not removed & set(waiting), f"sent again: {sorted(removed & set(waiting))}"
    assert waiting == sorted(waiting)


CHECKS: dict[str, Check] = {
    "ingest": check_ingest,
    "checkpoints": check_checkpoints,
    "models": check_models,
    "train": check_train,
    "audit": check_audit,
    "outbox": check_outbox,
    "labels": check_labels,
    "joined": check_joined,
    "streams": check_streams,
}
