"""Transfers that come in chunks over MQTT: one at a time, bounded, resumed after a restart.

`incoming/<transfer>/` holds `about.json` and the chunks that have come. Every chunk is compared with the
manifest when it comes and again when all are put together: what a power cut has torn is merely missing.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from enum import IntEnum
from pathlib import Path

from edged.clock import Clock
from edged.domain.bundle_contents import entry_of
from edged.errors import ConfigError, RefusedError
from edged.logs import get_logger
from edged.storage.files.atomic import disk_errors, make_directory, publish_file, remove, staging_path, sweep
from edged.storage.journal.transfers import ABOUT, Transfer, TransferPurpose, announced, chunk_file

FOLDER = "incoming"
EXPIRY_SECONDS = 3600.0  # without a chunk, after which a transfer gives way to another

log = get_logger("edged.incoming")


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
        self._present: set[int] = set()
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
            if current is not None and not self._is_current(transfer):
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
                self._present = set()
            elif self.transfer.purpose != transfer.purpose:
                self._keep(replace(self.transfer, purpose=transfer.purpose))  # the last announcement counts
            self._touched = self._clock.monotonic()
            return self.missing()

    def _keep(self, transfer: Transfer) -> None:
        folder = self.folder / transfer.name
        about = {
            "transfer": transfer.name,
            "manifest": transfer.manifest.to_json(),
            "purpose": asdict(transfer.purpose),
        }
        make_directory(folder)
        publish_file(folder / ABOUT, json.dumps(about).encode())
        self.transfer = transfer

    def _is_current(self, transfer: Transfer) -> bool:
        current = self.transfer
        return current is not None and (current.name, current.sha256) == (transfer.name, transfer.sha256)

    def missing(self) -> list[int]:
        """Return the numbers of missing chunks."""
        with self._lock:
            chunks = () if self.transfer is None else self.transfer.manifest.chunks
            return [number for number in range(len(chunks)) if number not in self._present]

    def put(self, name: str, number: int, data: bytes) -> ChunkResult:
        """Store a chunk, if it is wanted and is what the manifest says; a second time it changes nothing.

        Raises StorageError when the disk refuses.
        """
        with self._lock:
            transfer = self.transfer
            if transfer is None or name != transfer.name or not 0 <= number < len(transfer.manifest.chunks):
                return ChunkResult.REFUSED
            if number in self._present:
                return ChunkResult.STORED
            if entry_of(data) != transfer.manifest.chunks[number]:
                return ChunkResult.REFUSED
            path = self._path(number)
            staging = staging_path(path.parent, path.name)
            with disk_errors("taking a chunk", path):
                staging.write_bytes(data)
                staging.replace(path)
            self._present.add(number)
            self._touched = self._clock.monotonic()
            return ChunkResult.STORED if self.missing() else ChunkResult.LAST

    def lose(self, transfer: Transfer, torn: set[int]) -> None:
        """Count chunks of the transfer as missing, unless another one has taken its place."""
        with self._lock:
            if self._is_current(transfer):
                self._present -= torn

    def discard(self, transfer: Transfer) -> None:
        """Delete the transfer and its chunks, unless another transfer has replaced it."""
        with self._lock:
            if self.transfer is None or self.transfer.sha256 != transfer.sha256:
                return
            folder = self.folder / self.transfer.name
            self.transfer, self._present = None, set()
            if folder.exists():
                remove(folder)

    def _path(self, number: int) -> Path:
        name = self.transfer.name if self.transfer is not None else ""
        return self.folder / name / chunk_file(number)

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
            self.transfer = transfer
            names = {path.name for path in folder.iterdir()}
            self._present = {n for n in range(len(transfer.manifest.chunks)) if chunk_file(n) in names}

    def _read(self, folder: Path) -> Transfer | None:
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            purpose = TransferPurpose(**about["purpose"] | {"keys": tuple(about["purpose"]["keys"])})
            return announced(about["transfer"], about["manifest"], purpose, self._max_bytes)
        except (OSError, ValueError, KeyError, TypeError, ConfigError, RefusedError) as problem:
            log.warning("transfer_dropped", path=str(folder), problem=str(problem))
            return None
