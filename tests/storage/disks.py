"""Disks that record what is done to them, and fail or stop where they are told to."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from edged.storage.files.atomic import Disk


class PowerCutError(BaseException):
    """Nothing that handles errors may notice this one: the machine is gone."""


class TestedDisk(Disk):
    """Works like the real one; before operation number `at` it raises `problem`.

    `operations` lists what was asked for as `(operation, name)`.
    """

    __test__ = False

    def __init__(self, at: int | None = None, problem: BaseException | None = None) -> None:
        self.operations: list[tuple[str, str]] = []
        self._at = at
        self._problem = problem

    def _step(self, operation: str, path: Path) -> None:
        self.operations.append((operation, path.name))
        if self._problem is not None and len(self.operations) - 1 == self._at:
            raise self._problem

    def make_directory(self, path: Path) -> None:
        self._step("make_directory", path)
        super().make_directory(path)

    def write(self, path: Path, data: bytes) -> None:
        self._step("write", path)
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self._step("sync", path)
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        """One file or folder an operation: a cut may leave half of a tree."""
        if path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                self.remove(inner)
            self._step("remove", path)
            path.rmdir()
        else:
            self._step("remove", path)
            super().remove(path)


@dataclass(frozen=True)
class Fault:
    """One operation failing in one way."""

    at: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}-at-{self.at}"

    def disk(self) -> TestedDisk:
        """A disk on which it happens."""
        if self.kind == "power_cut":
            return TestedDisk(self.at, PowerCutError())
        number = getattr(errno, self.kind)
        return TestedDisk(self.at, OSError(number, os.strerror(number)))


def faults(count: int) -> list[Fault]:
    """Each of the first `count` operations failing in every way."""
    return [
        Fault(at, kind) for at in range(count) for kind in ("ENOSPC", "EIO", "EROFS", "EMFILE", "power_cut")
    ]
