"""Recovery: what a start does before any part opens, so that every part finds something whole.

After an orderly end there is nothing to do; after a crash or a power cut half-written files are
removed, what a part had begun is finished or undone, and a database that is damaged is set aside and
a new one begun. Nothing here needs to know how far the last process came: it only looks at what is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from edged.errors import CorruptError, EdgedError
from edged.logs import disk_may_refuse, get_logger
from edged.storage.backup import restore
from edged.storage.files.atomic import STAGING, fsync_directory, make_directory, sweep
from edged.storage.files.damaged_database import damage, rename_damaged
from edged.storage.journal import last_run
from edged.storage.journal.last_run import Boot, Reason
from edged.storage.models.bundles import DESCRIPTION, finish_interrupted
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog

log = get_logger("edged.recover")

DATABASES = ("samples.db", "state.db")
PARTS: dict[str, tuple[str, ...]] = {
    "the registry": ("state.db", "models"),
    "the sample log": ("samples.db", "checkpoints", "state.db"),
    "the outbox": ("outbox.db", "state.db"),
    "the pipeline": ("state.db", "samples.db", "models"),
    "the commands": ("incoming", "state.db"),
    "the extensions": ("state.db", "rounds", "fleet"),
    "the threads": ("state.db", "samples.db", "outbox.db"),
}
"""What a start opens, and what is set aside where it fails, one more with each start."""
FILES = (*DATABASES, "outbox.db", "boot.json", "status.json", "config.set.json", "bundle.hidden.json",
         "trust.json", "trust.copy.json", "audit.head", "models/champion",
         "web-access.json", "web-access.lock", "web-certificate.pem")  # fmt: skip
FOLDERS = ("models", "checkpoints", "candidates", "incoming", "rounds", "fleet", "bundles",
           "exports", "unpacked", "bundle")  # fmt: skip
FAILURES, DEATHS = 2, 5
"""Starts that fail at a part before its first file goes: with an error, and without a word. What kills
starts again and again may also be a lack of memory, or a person."""
CHECK_SECONDS = 1.0
"""For each database: a device must not stand still because its log is large."""
OFFSET_MARGIN = 1_000_000
"""Offsets that a lost sample log may have given beyond those that are known."""

_BEGUN = "log.begun"
_MISPLACED = (IsADirectoryError, NotADirectoryError, FileExistsError)


@dataclass
class Recovery:
    """Why the daemon starts, and what was repaired, one line each.

    `state`: the state directory. `boot_id`: see `storage.boots`.
    """

    boot: Boot
    state: Path
    boot_id: str
    repaired: list[str] = field(default_factory=list)

    @property
    def reason(self) -> Reason:
        """Why the daemon has started, such as `crash` or `power_loss`."""
        return self.boot.reason

    def record(self, what: str) -> None:
        """Log a repair and add it to the report."""
        log.warning("repaired", what=what)
        self.repaired.append(what)

    def set_aside(self, name: str, why: str, now: float) -> None:
        """Rename something of the state directory that is damaged, if it is there."""
        if os.path.lexists(self.state / name):
            self.record(f"{name} was set aside as {rename_damaged(self.state / name, now)}: {why}")

    @contextmanager
    def opening(self, part: str) -> Iterator[None]:
        """Within it a start opens one of `PARTS`. If it fails, the next starts know where.

        An error that says what is wrong stays as it is, unless it is of damage; any other is taken for
        damage, and raised as CorruptError.
        """
        before = self.boot.failed
        times = 1 + (before[1] if before is not None and before[0] == part else 0)
        if self.boot.died:
            # Whatever ended that start may end this one: nothing could be noted afterwards.
            last_run.record_failure(self.state, self.boot_id, (part, times), ended=False)
        try:
            yield
        except CorruptError as problem:
            if Path(problem.where).name in DATABASES:
                last_run.record(self.state, self.boot_id, "damaged", Path(problem.where).name)
            else:
                last_run.record_failure(self.state, self.boot_id, (part, times), ended=True)
            raise
        except Exception as problem:
            expected = isinstance(problem, EdgedError | ImportError | OSError)
            if expected and not isinstance(problem, _MISPLACED):
                if self.boot.died:
                    last_run.record_failure(self.state, self.boot_id, None, ended=True)
                raise
            log.exception("start_failed", part=part, times=times)
            last_run.record_failure(self.state, self.boot_id, (part, times), ended=True)
            remedy = f"start again: after two failures {PARTS[part][0]} is set aside"
            raise CorruptError(f"{type(problem).__name__}: {problem}", where=part, remedy=remedy) from problem

    def serving(self) -> None:
        """Record that the start succeeded; on a disk that refuses, the next one notes more."""
        with disk_may_refuse(log, "start_not_noted"):
            last_run.record(self.state, self.boot_id)


def recover(
    state: Path, *, boot_id: str, now: float, bundle: Path | None = None, check_seconds: float = CHECK_SECONDS
) -> Recovery:
    """Bring a state directory in order, before anything in it is opened and while it is locked.

    `state`: the state directory; made where there is none. `boot_id`: see `storage.boots`. `now`: Unix
    seconds, for the names of what is set aside. `bundle`: where the bundle lies; the standard one's place by
    default. `check_seconds`: how long one database may be checked. Raises StorageError when the disk refuses.
    Nothing that was whole is worse for it; the next start tries again.
    """
    make_directory(state)
    restored = restore.finish(state)
    odd = _other_kinds(state, now)
    found = Recovery(last_run.record_startup(state, boot_id), state, boot_id)
    boot = found.boot
    for what in odd:
        found.record(what)
    if restored:
        found.record("a restore that was cut off has been finished")
    for place in {bundle or state / "bundle", state / "bundle"}:
        if finish_interrupted(place):
            found.record(f"the bundle {place.name} was put back in its place")
    _sweep(state, found)
    if boot.failed is not None:
        part, times = boot.failed
        beyond = times - (DEATHS if boot.died else FAILURES)
        for name in PARTS.get(part, ())[beyond : beyond + 1] if beyond >= 0 else ():
            found.set_aside(name, f"{times} starts failed at {part}", now)
    for name in DATABASES:
        path = state / name
        problem = damage(path, check_seconds)
        if problem is None and boot.damaged == name:
            problem = "the daemon found it damaged while it was running"
        if problem is not None:
            found.set_aside(name, problem, now)
    return found


def _other_kinds(state: Path, now: float) -> list[str]:
    """Set aside directories in place of files, and the other way round; what was done."""
    files = [state / name for name in FILES]
    files += [state / f"{name}{end}" for name in (*DATABASES, "outbox.db") for end in ("-wal", "-shm")]
    files += state.glob("audit-*.jsonl")
    odd = [path for path in files if os.path.lexists(path) and not path.is_file()]
    if os.path.lexists(state / "bundle" / DESCRIPTION) and not (state / "bundle" / DESCRIPTION).is_file():
        odd.append(state / "bundle")
    odd += [path for name in FOLDERS if os.path.lexists(path := state / name) and not path.is_dir()]
    return [
        f"{path.name} was set aside as {rename_damaged(path, now)}: it is of another kind" for path in odd
    ]


def _sweep(state: Path, found: Recovery) -> None:
    """Remove what was never published, and make durable what a crash may have left just before that."""
    published = (path for path in state.iterdir() if path.is_dir() and not path.name.startswith(STAGING))
    for folder in (state, *sorted(published)):
        for name in sweep(folder):
            found.record(f"removed {(folder / name).relative_to(state)}, which was never published")
        fsync_directory(folder)
    fsync_directory(state.absolute().parent)


def renumber(samples: SampleLog, registry: Registry, checkpoints: Checkpoints) -> str | None:
    """Where the sample log was lost, let the new one continue behind all that is known of the old one.

    Checkpoints name replay memory by offset and how far they have learned by position in label order:
    a log that began at 1 again would give them other samples, and labels that count as learned.

    Returns
    -------
    What was done, in one line; None where there was nothing to do.
    """
    if samples.next_offset() != 1:
        return None
    offset, seq = _known(registry, checkpoints)
    if (offset, seq) == (0, 0):
        return None
    offset += OFFSET_MARGIN
    registry.set_value(_BEGUN, offset)  # first, so that a log that gets lost again is behind this one, too
    samples.continue_from(offset, seq + 1)
    return f"the sample log begins again at offset {offset}"


class UnfinishedRun(NamedTuple):
    """The run that the newest checkpoint was made in; `trained` if only its candidate was not judged."""

    run: int
    trained: bool


def unfinished(checkpoints: Checkpoints, registry: Registry) -> UnfinishedRun | None:
    """Return the training run that was cut off and can be continued from the newest checkpoint."""
    newest = checkpoints.latest()
    learner = {} if newest is None else newest.state.get("learner", {})
    plan = learner.get("plan") or learner.get("finished")
    if not plan:
        return None
    run, trained = int(plan["run"]), not learner.get("plan")
    return None if trained and _judged(registry, run) else UnfinishedRun(run, trained)


def _judged(registry: Registry, run: int) -> bool:
    """Whether the gate's verdict on the candidate of a run, or of a later one, took effect."""
    return registry.judged() >= run or any(
        record.source == "training" and (record.run or 0) >= run and record.status != "candidate"
        for record in registry.records()
    )


def _known(registry: Registry, checkpoints: Checkpoints) -> tuple[int, int]:
    """The largest offset and the largest position in label order that anything kept speaks of."""
    offsets, seqs = [int(registry.get_value(_BEGUN) or 0)], [int(registry.get_value("consumed") or 0)]
    offsets += [record.data.last_offset or 0 for record in registry.records()]
    newest = checkpoints.latest()
    if newest is not None:
        learner: dict[str, Any] = newest.state.get("learner", {})
        plan = learner.get("plan") or {}
        seqs += [int(learner.get("consumed", 0)), int(plan.get("upto", 0))]
        offsets += [int(offset) for offset in learner.get("excluded", [])]
        memory = newest.arrays.get("memory_ids")
        offsets += [] if memory is None or not len(memory) else [int(memory.max())]
    return max(offsets), max(seqs)


def restored(registry: Registry, name: str, restore: Callable[[Any], bool | None]) -> bool:
    """Give a stored value to `restore`, where there is one; what cannot be read begins again: False."""
    kept = registry.get_value(name)
    try:
        return kept is not None and restore(kept) is not False
    except (CorruptError, LookupError, TypeError, ValueError) as problem:
        log.warning("state_lost", name=name, problem=f"{type(problem).__name__}: {problem}")
        return False
