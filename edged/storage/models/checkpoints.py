"""Checkpoints: generations of everything needed to continue a training bit-exactly.

`checkpoints/<number>/` holds the engine's own files, `state.json`, `arrays.npz` and the manifest; updates of
a fleet's rounds are kept in the same form.
One process writes (the trainer); any may read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.errors import StorageError
from edged.storage.files import atomic

STATE = "state.json"
ARRAYS = "arrays.npz"


@dataclass(frozen=True)
class Generation:
    """A checkpoint that has been verified: the engine's files in `path`, the rest already read."""

    number: int
    path: Path
    state: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


GENERATIONS_KEPT = 3


class Checkpoints:
    """The checkpoints of one state directory.

    Of the newest good ones `keep` stay. `damaged` has the numbers that `latest` found damaged and passed
    over, newest first.
    """

    def __init__(
        self, directory: Path, keep: int = GENERATIONS_KEPT, *, disk: atomic.Disk = atomic.DISK
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._disk = disk
        self._whole: set[int] = set()
        self.damaged: list[int] = []

    def numbers(self) -> list[int]:
        """All published generations, oldest first, whole or not."""
        if not self._directory.is_dir():
            return []
        return sorted(int(path.name) for path in self._directory.iterdir() if path.name.isdigit())

    def stage(self) -> Path:
        """An empty directory to write a new generation into; an unpublished earlier one is removed."""
        atomic.make_directory(self._directory, disk=self._disk)
        with atomic.disk_errors("preparing a checkpoint", self._directory):
            atomic.sweep(self._directory, disk=self._disk)
            staging = atomic.staging_path(self._directory, "generation")
            self._disk.make_directory(staging)
        return staging

    def publish(self, staging: Path, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> int:
        """Make a staged directory the newest generation; its number, never used before.

        `staging` is from `stage`, with the engine's files in it; `state` holds JSON values, `arrays` arrays
        of any shape and of plain dtypes: nothing is ever pickled.

        Raises StorageError when it could not be made durable, or old generations could not be removed. The
        newest generation is then whatever `latest` says.
        """
        number = max(self.numbers(), default=0) + 1
        with atomic.disk_errors("writing a checkpoint", staging):
            self._disk.write(staging / STATE, json.dumps(dict(state)).encode())
            self._disk.write(staging / ARRAYS, pack_arrays(arrays))
        # Durable before an older one goes: a power cut leaves this one or those before it.
        atomic.publish_directory(staging, self._path(number), extra={"generation": number}, disk=self._disk)
        self._whole.add(number)
        for path in self._surplus():
            atomic.remove(path, disk=self._disk)
        return number

    def latest(self) -> Generation | None:
        """The newest generation that is whole; the damaged ones above it are listed in `damaged`."""
        return next(self.whole(), None)

    def whole(self) -> Iterator[Generation]:
        """Read the generations that are whole, newest first; the others are listed in `damaged`."""
        self.damaged = []
        for number in reversed(self.numbers()):
            try:
                found = self.get(number)
            except StorageError:  # damaged, or on a part of the disk that cannot be read any more
                # One that is gone was pruned by its writer in this moment: that is no damage.
                if self._path(number).exists():
                    self.damaged.append(number)
            else:
                yield found

    def get(self, number: int) -> Generation:
        """Verify and read one generation.

        Raises CorruptError when it is missing or differs from what was written.
        """
        path = self._path(number)
        atomic.verify_directory(path)
        with atomic.disk_errors("reading a checkpoint", path):
            state = json.loads((path / STATE).read_bytes())
            arrays = unpack_arrays((path / ARRAYS).read_bytes())
        self._whole.add(number)
        return Generation(number, path, state, arrays)

    def _path(self, number: int) -> Path:
        return self._directory / str(number)

    def _surplus(self) -> list[Path]:
        """All generations but the newest `keep` that are whole."""
        numbers = self.numbers()
        kept = [number for number in reversed(numbers) if self._is_whole(number)][: self._keep]
        self._whole.intersection_update(kept)
        return [self._path(number) for number in numbers if number not in kept]

    def _is_whole(self, number: int) -> bool:
        if number not in self._whole:
            try:
                atomic.verify_directory(self._path(number))
            except StorageError:
                return False
            self._whole.add(number)
        return True


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays as the bytes of an `.npz` file: the same arrays give the same bytes.

    Raises StorageError for an array of Python objects: those would have to be pickled.
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise StorageError(f"array {name!r} holds Python objects", where=ARRAYS,
                               remedy="store numbers or text only")  # fmt: skip
    file, named = io.BytesIO(), dict[str, Any](arrays)
    np.savez(file, **named)
    return file.getvalue()


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays that `pack_arrays` has encoded."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
