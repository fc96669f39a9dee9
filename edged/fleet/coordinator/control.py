"""Orders of an operator to a coordinator: a file in its directory, which also counts for the next start."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from edged.domain.training.message import Message
from edged.errors import CorruptError, RefusedError, RejectedUpdateError, StorageError
from edged.fleet.rules.rounds import Phase
from edged.logs import get_logger
from edged.storage.files import atomic
from edged.storage.files.checksummed_json import read_message, seal

Action = Literal["pause", "resume", "abandon", "approve"]
CONTROL = "control.json"

log = get_logger("edged.fleet")


@dataclass(frozen=True)
class Order(Message):
    """Order to end round `round` without a model, or to let its model go to the next stage, while in `phase`.

    `by` is the user who gave it. `token` tells one order from the next: each is carried out once.
    """

    what: Literal["abandon", "approve"]
    round: int
    phase: Phase
    token: str
    by: str = ""


@dataclass(frozen=True)
class Control(Message):
    """No round is opened while `paused`; devices that are `excluded` take no part."""

    paused: bool = False
    excluded: tuple[str, ...] = ()
    order: Order | None = None


class ControlReader:
    """Reads the control file in `folder` again when it has changed."""

    def __init__(self, folder: Path) -> None:
        self._path, self._seen = folder / CONTROL, (0, 0)
        self._control = Control()

    def check(self, device: str) -> None:
        """Refuse what comes from a device that is excluded."""
        if device in self.read().excluded:
            raise RejectedUpdateError("excluded", f"{device} is excluded from rounds")

    def read(self) -> Control:
        """The instructions that hold now; those of before while the file cannot be read."""
        try:
            stat = self._path.stat()
            found = stat.st_mtime_ns, stat.st_ino
        except OSError:
            found = 0, 0
        if found != self._seen:
            self._seen = found
            try:
                self._control = read_control(self._path.parent)
            except (CorruptError, StorageError) as problem:
                log.error("fleet_control_unreadable", problem=problem.line(), remedy="send the order again")
        return self._control


def read_control(folder: Path) -> Control:
    """The instructions in a coordinator's directory; CorruptError when the file is damaged."""
    path = folder / CONTROL
    return read_message(path, Control) if path.exists() else Control()


def instruct(folder: Path, action: Action, course: tuple[int, Phase], by: str = "") -> Control:
    """Pause or resume rounds, abandon one, or approve its model; `course` is the round and its phase.

    `by` is the user who says so. Raises RefusedError when there is nothing to abandon or to approve.
    """
    control = _known(folder)
    if action in ("pause", "resume"):
        return _write(folder, replace(control, paused=action == "pause"))
    number, phase = course
    if action == "abandon" and phase not in ("open", "trial", "approval"):
        raise RefusedError("no round is under way", where=f"round {number}: {phase}")
    if action == "approve" and phase != "approval":
        raise RefusedError("no rollout waits for approval", where=f"round {number}: {phase}")
    what = cast('Literal["abandon", "approve"]', action)
    return _write(folder, replace(control, order=Order(what, number, phase, secrets.token_hex(8), by)))


def exclude(folder: Path, device: str, *, include: bool = False) -> Control:
    """Let a device take no part in rounds, or (`include`) take part again."""
    control = _known(folder)
    others = [name for name in control.excluded if name != device]
    if include and len(others) == len(control.excluded):
        raise RefusedError(f"{device} is not excluded", where="fleet include")
    return _write(folder, replace(control, excluded=tuple(sorted(others if include else [*others, device]))))


def _known(folder: Path) -> Control:
    try:
        return read_control(folder)
    except CorruptError as problem:
        log.warning("fleet_control_unreadable", problem=problem.line(), remedy="its instructions are lost")
        return Control()


def _write(folder: Path, control: Control) -> Control:
    if not folder.is_dir():
        raise StorageError("no coordinator has run here", where=str(folder), remedy="start `edged fleet run`")
    atomic.publish_file(folder / CONTROL, seal(control.to_json()))
    return control
