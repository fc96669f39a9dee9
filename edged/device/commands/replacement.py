"""The command `config.replace`: another configuration file, on trial until the device runs with it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from edged.config import Config, loader
from edged.domain.audit_chain import SIGNER
from edged.domain.commands.rules import Answer, Request
from edged.domain.commands.tasks import Task
from edged.domain.training.message import Message
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError, TrainingError
from edged.host.waiting import WakeupQueue
from edged.logs import get_logger
from edged.storage.files.atomic import DISK, Disk, disk_errors, fsync_directory, publish_file

MAX_STARTS = 3  # of the daemon with a file on trial; after that the file before it is put back
PROTECTED = ("commands", "device", "fleet", "install", "mqtt", "web")
"""Sections that say who is trusted, and where the device is found: they change with a signature only."""

log = get_logger("edged.settings")


class StreamChanges(Protocol):
    """Has the streams of a running device follow the configuration."""

    failed: dict[str, str]
    """What is wrong with each stream that does not run, in one line."""

    def changing(self) -> AbstractContextManager[None]:
        """Keep others from changing streams meanwhile. RefusedError while the daemon stops."""

    def needs_restart(self, configs: Sequence[Config]) -> bool:
        """Return whether more than streams and their sections differ from what is in force."""

    def reload(self, path: Path) -> None:
        """Have streams start, restart and stop as the configuration file says."""


class Restart:
    """Asks the main thread to stop the device and to start the daemon again."""


@dataclass(frozen=True)
class Trial(Message):
    """A file on trial: its SHA-256, how often the daemon started with it, and what was wrong.

    `failing` are streams that failed already before.
    """

    sha256: str
    starts: int = 0
    problem: str | None = None
    failing: tuple[str, ...] = ()


class ConfigFile:
    """The configuration file at `path`, which another one can replace.

    Beside it lie `<name>.old`, the file before the last replacement, and `<name>.trial` until the daemon runs
    with the new one. Each step is durable before the next, so that a power cut leaves the old file or the
    new one, and the daemon knows which one it has to try.
    """

    def __init__(self, path: Path, *, disk: Disk = DISK) -> None:
        self.path = Path(os.path.realpath(path))  # resolve() raises for a loop of links
        self._disk = disk
        self._old = self.path.with_name(f"{self.path.name}.old")
        self._state = self.path.with_name(f"{self.path.name}.trial")

    @property
    def trial(self) -> Trial | None:
        """The trial that has not ended; None if there is none."""
        trial = self._read()
        return trial if trial is not None and trial.problem is None and self.sha256 == trial.sha256 else None

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        with disk_errors("reading", self.path):
            return _sha256(self.path.read_bytes())

    @property
    def old_sha256(self) -> str:
        """SHA-256 of the file before the last replacement."""
        with disk_errors("reading", self._old):
            return _sha256(self._old.read_bytes())

    def put(self, content: bytes, failing: Sequence[str] = ()) -> None:
        """Put `content` in the place of the file, on trial; keep the file before it.

        Raises RefusedError while another file is on trial; StorageError when the disk refuses.
        """
        if self.trial is not None:
            raise RefusedError("another configuration is on trial", where="config", remedy="send it again")
        with disk_errors("reading", self.path):
            before = self.path.read_bytes()
        self._publish(self._old, before)
        self._write(Trial(_sha256(content), failing=tuple(failing)))
        try:
            self._publish(self.path, content)
        except StorageError as problem:
            with suppress(StorageError):  # else the next start tries the new file
                self.revert(problem.line())
            raise

    def begin_start(self) -> None:
        """Count a start of the daemon with a file on trial; put the old file back if too many have failed."""
        try:
            trial = self._read()
            if trial is None or self.sha256 != trial.sha256:
                return
            if trial.problem is not None or trial.starts >= MAX_STARTS:
                self.revert(trial.problem or f"the daemon did not start in {trial.starts} attempts")
            else:
                self._write(replace(trial, starts=trial.starts + 1))
        except StorageError as problem:  # no reason to stay down
            log.error("config_trial_unreadable", problem=problem.line())

    def accept(self) -> None:
        """End the trial: the daemon runs with the new file."""
        try:
            if self.trial is not None:
                with disk_errors("removing", self._state):
                    self._disk.remove(self._state)
                fsync_directory(self._state.parent, disk=self._disk)
        except StorageError as problem:
            log.error("config_trial_not_ended", problem=problem.line())

    def revert(self, problem: str) -> bool:
        """Put the old file back, for this reason; False if no file is on trial."""
        trial = self._read()
        if trial is None or self.sha256 != trial.sha256:
            return False
        self._write(replace(trial, problem=problem))
        with disk_errors("reading", self._old):
            before = self._old.read_bytes()
        self._publish(self.path, before)
        log.error("config_reverted", problem=problem)
        return True

    def problem_of(self, sha256: str) -> str | None:
        """Why the file with this SHA-256 does not count; None if it does."""
        if self.sha256 == sha256:
            return None
        trial = self._read()
        known = trial is not None and trial.sha256 == sha256
        return (trial.problem if known and trial else None) or "the daemon ended before the file was in place"

    def _read(self) -> Trial | None:
        try:
            return Trial.from_json(json.loads(self._state.read_bytes()))
        except (OSError, ValueError, TrainingError):
            return None

    def _write(self, trial: Trial) -> None:
        self._publish(self._state, json.dumps(trial.to_json()).encode())

    def _publish(self, path: Path, content: bytes) -> None:
        """Publish a file with the permissions of the configuration file."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        publish_file(path, content, disk=self._disk)
        with suppress(OSError):
            path.chmod(mode)


class ConfigReplacement:
    """`config.replace`: checks a configuration file as a reload does, and has the device run with it.

    `endings` wakes the main thread, which restarts the daemon. With several streams `changes` applies what
    needs no restart.
    """

    def __init__(self, path: Path, endings: WakeupQueue) -> None:
        self.file = ConfigFile(path)
        self.changes: StreamChanges | None = None
        self._endings = endings
        self._open: list[tuple[Request, Task]] = []  # of an earlier process, to be answered

    def replace(self, request: Request, task: Task) -> Answer:
        """Replace the configuration file by the text `config`; the old file comes back if it does not start.

        Raises ConfigError when the text is no usable configuration; RefusedError when an unsigned command
        changes who is trusted, or another file is on trial; StorageError when the file cannot be written.
        """
        if task.key is None:
            raise ConfigError(
                "config.replace needs an id", where="transaction", remedy="send a text of its own"
            )
        content = request["config"].encode()
        fresh = loader.load_all(self.file.path, text=request["config"])
        if SIGNER not in task.request:
            changed = next(_protected(loader.load_all(self.file.path, plain=True), fresh), None)
            if changed is not None:
                raise RefusedError(
                    "changes with a signed command only",
                    where=changed,
                    remedy="sign config.replace, or edit the file on the device",
                )
        if _sha256(content) == self.file.sha256:
            task.done({"sha256": _sha256(content)})
        elif self.changes is None:
            self.file.put(content)
            self._endings.put(Restart())
        else:
            self._apply(self.changes, content, fresh, task)
        return {"sha256": _sha256(content)}

    def _apply(self, changes: StreamChanges, content: bytes, fresh: Sequence[Config], task: Task) -> None:
        """Have streams follow the new file, or the whole device if more has changed."""
        with changes.changing():
            failing = sorted(changes.failed)
            self.file.put(content, failing)
            if changes.needs_restart(fresh):
                self._endings.put(Restart())
                return
            changes.reload(self.file.path)
            failed = new_failure(changes.failed, failing)
            if failed is not None:
                self.file.revert(failed)
                changes.reload(self.file.path)
                raise _failure(failed)
            self.file.accept()
        task.done(self._result(content))

    def resume(self, request: Request, task: Task) -> None:
        """Answer the command once the daemon runs; see `settle`."""
        self._open.append((request, task))

    def settle(self) -> None:
        """Answer the commands that an earlier process left open, now that the daemon runs."""
        for request, task in self._open:
            content = request["config"].encode()
            try:
                problem = self.file.problem_of(_sha256(content))
                if problem is not None:
                    raise _failure(problem)
                task.done(self._result(content))
            except EdgedError as failure:
                task.fail(failure)
        self._open.clear()

    def _result(self, content: bytes) -> Answer:
        """Data of the last answer; the hashes of both files are for the audit log."""
        before, after = {"configuration": self.file.old_sha256}, {"configuration": _sha256(content)}
        return {"sha256": _sha256(content), "before": before, "after": after}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _failure(problem: str) -> EdgedError:
    return EdgedError(f"{problem}; the file before it is in force", where="config.replace")


def new_failure(failed: Mapping[str, str], failing: Sequence[str]) -> str | None:
    """Return the problem of a stream that fails and is not among `failing`; None if there is none."""
    return next((f"{name}: {problem}" for name, problem in failed.items() if name not in failing), None)


def _protected(before: Sequence[Config], after: Sequence[Config]) -> Iterator[str]:
    """Yield the protected keys that differ between two configurations, such as `commands.keys`."""
    for section in PROTECTED:
        old, new = getattr(before[0], section), getattr(after[0], section)
        if old == new:
            continue
        if old is None or new is None:
            yield section
            continue
        yield from (
            f"{section}.{key}" for key in type(new).model_fields if getattr(old, key) != getattr(new, key)
        )
    if before[0].device_dir != after[0].device_dir:
        yield "storage.dir"
    keys = {config.name: config.model.keys for config in before}
    for config in after:
        known = [keys[config.name]] if config.name in keys else list(keys.values())
        if config.model.keys not in known:
            yield "model.keys"
