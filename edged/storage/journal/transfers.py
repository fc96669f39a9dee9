"""Transfers that come in chunks over MQTT: one at a time, bounded, resumed after a restart.

`incoming/<transfer>/` holds `about.json`, what its sender announced, and `content`, where every chunk lies in
its place. A chunk is compared with the manifest when it comes and again by the next process: what a power cut
has torn is merely missing.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from edged.clock import Clock
from edged.domain.bundle_contents import FileEntry, entry_of
from edged.domain.training.message import Message
from edged.domain.training.update_manifest import TransferManifest
from edged.errors import ConfigError, CorruptError, RefusedError, StorageError
from edged.logs import get_logger
from edged.storage.files.atomic import disk_errors, make_directory, publish_file, remove, sweep, write_at
from edged.storage.files.checksummed_json import read_message, seal

FOLDER = "incoming"
ABOUT, CONTENT = "about.json", "content"
MOST_CHUNKS = 10_000
EXPIRY_SECONDS = 3600.0  # without a chunk, after which a transfer gives way to another
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

log = get_logger("edged.incoming")


@dataclass(frozen=True)
class TransferPurpose:
    """What a transfer is for.

    Attributes
    ----------
    kind
        What arrives: weights, a model file or a bundle file.
    downgrade
        Whether a signed bundle may be older than one that was taken before.
    keys
        Ids of the keys of `model.keys` that counted when it was announced.
    """

    kind: Literal["weights", "model", "bundle"] = "weights"
    downgrade: bool = False
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transfer(Message):
    """A transfer as it was announced: its name, manifest and purpose."""

    name: str
    manifest: TransferManifest
    purpose: TransferPurpose

    @property
    def sha256(self) -> str:
        """Checksum of the whole file, in hexadecimal."""
        return self.manifest.sha256

    @property
    def starts(self) -> list[int]:
        """Where each chunk begins in the file."""
        return list(accumulate((chunk.bytes for chunk in self.manifest.chunks), initial=0))

    def check(self, content: Path) -> None:
        """Raise ConfigError when a file is not what the manifest says of the whole."""
        with disk_errors("reading", content):
            found = FileEntry.of(content)
        if found != FileEntry(self.manifest.bytes, self.sha256):
            raise ConfigError("the chunks together are not what the manifest says", where=self.name)


def announced(name: Any, manifest: Any, purpose: TransferPurpose, max_bytes: int) -> Transfer:
    """Create a transfer from its sender's announcement.

    Raises
    ------
    ConfigError
        When the name or the manifest is not usable.
    RefusedError
        When it is too large.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError("a transfer has 1 to 64 letters, digits, - and _", where="transfer")
    try:
        found = TransferManifest.from_json(manifest)
    except CorruptError:
        raise _malformed() from None
    sizes = [chunk.bytes for chunk in found.chunks]
    if not sizes or not all([found.bytes, *sizes]):
        raise _malformed()
    if sum(sizes) != found.bytes:
        raise ConfigError("the chunks together do not have the size of the whole", where="manifest")
    if found.bytes > max_bytes or len(sizes) > MOST_CHUNKS:
        raise RefusedError(
            f"{found.bytes} bytes in {len(sizes)} chunks, at most {max_bytes} in {MOST_CHUNKS}",
            where=name,
            remedy="send fewer parameters" if purpose.kind == "weights" else "raise install.max_bytes",
        )
    return Transfer(name, found, purpose)


def _malformed() -> ConfigError:
    return ConfigError(
        "needs bytes, sha256 and chunks, each of those with bytes and sha256",
        where="manifest",
        remedy="send the manifest that belongs to the chunks",
    )


class ChunkResult(IntEnum):
    """Result of handing over a chunk: refused, stored, or stored as the last one missing."""

    REFUSED = 0
    STORED = 1
    LAST = 2


class TransferStaging:
    """Keeps the chunks of one transfer; safe to use from several threads.

    It lies in `folder`, below its name. A transfer has at most `max_bytes`, and gives way to another after
    `expire` seconds without a chunk.
    """

    def __init__(self, state: Path, *, max_bytes: int, clock: Clock, expire: float = EXPIRY_SECONDS) -> None:
        self.folder = state / FOLDER
        self._max_bytes = max_bytes
        self._expire = expire
        self._clock = clock
        self._lock = threading.RLock()
        self._touched = clock.monotonic()
        self._missing: set[int] = set()
        self.transfer: Transfer | None = None
        self._restore()

    def open(self, transfer: Transfer) -> list[int]:
        """Open a transfer, or resume it; return the numbers of missing chunks.

        Raises
        ------
        RefusedError
            When another one is under way.
        StorageError
            When the disk refuses.
        """
        with self._lock:
            current = self.transfer
            if current is not None and not self.holds(transfer):
                idle = self._clock.monotonic() - self._touched
                if idle < self._expire and current.name != transfer.name:
                    raise RefusedError(
                        "another transfer is under way",
                        where=current.name,
                        remedy=f"finish it; it is discarded after {self._expire:g} s without a chunk",
                    )
                self.discard(current)
            if self.transfer is None:
                self._keep(transfer)
                self._missing = set(range(len(transfer.manifest.chunks)))
            elif self.transfer.purpose != transfer.purpose:
                self._keep(replace(self.transfer, purpose=transfer.purpose))  # the last announcement counts
            self._touched = self._clock.monotonic()
            return sorted(self._missing)

    def _keep(self, transfer: Transfer) -> None:
        folder = self.folder / transfer.name
        make_directory(folder)
        publish_file(folder / ABOUT, seal(transfer.to_json()))
        self.transfer = transfer

    def holds(self, transfer: Transfer) -> bool:
        """Return whether the transfer is the one that is under way."""
        current = self.transfer
        return current is not None and (current.name, current.sha256) == (transfer.name, transfer.sha256)

    def put(self, name: str, number: int, data: bytes) -> ChunkResult:
        """Store a chunk, if it is wanted and is what the manifest says; a second time it changes nothing.

        Raises StorageError when the disk refuses.
        """
        with self._lock:
            transfer = self.transfer
            if transfer is None or name != transfer.name or not 0 <= number < len(transfer.manifest.chunks):
                return ChunkResult.REFUSED
            if number not in self._missing:
                return ChunkResult.STORED
            if entry_of(data) != transfer.manifest.chunks[number]:
                return ChunkResult.REFUSED
            self._write(self.content(transfer), data, transfer.starts[number])
            self._missing.discard(number)
            self._touched = self._clock.monotonic()
            return ChunkResult.STORED if self._missing else ChunkResult.LAST

    @staticmethod
    def _write(path: Path, data: bytes, start: int) -> None:
        with disk_errors("taking a chunk", path):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                write_at(file, data, start)
            finally:
                os.close(file)

    def content(self, transfer: Transfer) -> Path:
        """Return where the file lies, or will lie, that the transfer brings."""
        return self.folder / transfer.name / CONTENT

    def discard(self, transfer: Transfer) -> None:
        """Delete the transfer and its chunks, unless another transfer has replaced it."""
        with self._lock:
            if self.transfer is None or self.transfer.sha256 != transfer.sha256:
                return
            folder = self.folder / self.transfer.name
            self.transfer, self._missing = None, set()
            if folder.exists():
                remove(folder)

    def _restore(self) -> None:
        """What an earlier process has left: the one transfer that was under way."""
        sweep(self.folder)
        if not self.folder.is_dir():
            return
        for folder in sorted(self.folder.iterdir()):
            transfer = None if self.transfer is not None else self._read(folder)
            if transfer is None:
                remove(folder)
                continue
            sweep(folder)
            self.transfer, self._missing = transfer, self._torn(transfer)

    def _read(self, folder: Path) -> Transfer | None:
        try:
            kept = read_message(folder / ABOUT, Transfer)
            return announced(kept.name, kept.manifest.to_json(), kept.purpose, self._max_bytes)
        except (StorageError, ConfigError, RefusedError) as problem:
            log.warning("transfer_dropped", path=str(folder), problem=problem.line())
            return None

    def _torn(self, transfer: Transfer) -> set[int]:
        """Read what there is, and return the numbers of chunks that are missing or damaged."""
        path = self.content(transfer)
        if not path.exists():
            return set(range(len(transfer.manifest.chunks)))
        with disk_errors("reading", path), path.open("rb") as file:
            chunks = enumerate(transfer.manifest.chunks)
            return {number for number, chunk in chunks if entry_of(file.read(chunk.bytes)) != chunk}


def read_transfer(folder: Path) -> tuple[TransferManifest, bytes]:
    """Read manifest and content of a complete transfer; for a process that only reads.

    Raises StorageError when they cannot be read; CorruptError when that is no manifest.
    """
    manifest = read_message(folder / ABOUT, Transfer).manifest
    with disk_errors("reading", folder):
        return manifest, (folder / CONTENT).read_bytes()
