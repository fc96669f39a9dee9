"""Transfers that come in chunks over MQTT: one at a time, bounded, resumed after a restart.

`incoming/<transfer>/` holds `about.json` and the chunks that have come. Every chunk is compared with the
manifest when it comes and again when all are put together: what a power cut has torn is merely missing.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from edged.domain.json_fields import JsonFields
from edged.errors import ConfigError, RefusedError
from edged.logs import get_logger
from edged.storage.files.atomic import disk_errors, make_directory, publish_file, remove, staging_path, sweep

if TYPE_CHECKING:
    from pathlib import Path

    from edged.clock import Clock

FOLDER = "incoming"
MOST_CHUNKS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ABOUT = "about.json"

log = get_logger("edged.incoming")


@dataclass(frozen=True)
class ChunkDigest:
    """Expected size and checksum of one chunk."""

    size: int
    sha256: str

    def fits(self, data: bytes) -> bool:
        """Return whether `data` is this chunk."""
        return len(data) == self.size and hashlib.sha256(data).hexdigest() == self.sha256


class ChunkResult(IntEnum):
    """Result of handing over a chunk: refused, stored, or stored as the last one missing."""

    REFUSED = 0
    STORED = 1
    LAST = 2


@dataclass(frozen=True)
class TransferPurpose:
    """What a transfer is for.

    Attributes
    ----------
    kind
        What arrives: weights, a model file or a bundle file.
    mix
        Whether weights may be mixed with the device's own; else they take their place.
    url
        Where the device fetches the file itself, as one chunk; None where chunks are sent.
    """

    kind: Literal["weights", "model", "bundle"] = "weights"
    mix: bool = True
    url: str | None = None


@dataclass(frozen=True)
class Transfer:
    """A transfer as it was announced: its name, manifest, purpose and chunks."""

    name: str
    manifest: dict[str, Any]
    purpose: TransferPurpose
    pieces: tuple[ChunkDigest, ...]

    @property
    def sha256(self) -> str:
        """Checksum of the whole file, in hexadecimal."""
        return str(self.manifest["sha256"])


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
    pieces = _pieces(manifest)
    if sum(piece.size for piece in pieces) != manifest["bytes"]:
        raise ConfigError("the chunks together do not have the size of the whole", where="manifest")
    if manifest["bytes"] > max_bytes or len(pieces) > MOST_CHUNKS:
        raise RefusedError(
            f"{manifest['bytes']} bytes in {len(pieces)} chunks, at most {max_bytes} in {MOST_CHUNKS}",
            where=name,
            remedy=f"raise {'weights' if purpose.kind == 'weights' else 'install'}.max_bytes",
        )
    return Transfer(name, dict(manifest), purpose, pieces)


def _pieces(manifest: Any) -> tuple[ChunkDigest, ...]:
    whole = JsonFields(manifest, "manifest", _malformed)
    _piece(whole)
    pieces = tuple(_piece(entry) for entry in whole.each("chunks"))
    if not pieces:
        raise _malformed()
    return pieces


def _piece(fields: JsonFields) -> ChunkDigest:
    return ChunkDigest(fields.count("bytes", least=1), fields.digest("sha256"))


def _malformed(*_: str) -> ConfigError:
    return ConfigError(
        "needs bytes, sha256 and chunks, each of those with bytes and sha256",
        where="manifest",
        remedy="send the manifest that belongs to the chunks",
    )


def chunk_file(number: int) -> str:
    """Return the name of the file that holds a chunk."""
    return f"{number}.chunk"


def read_transfer(folder: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Read manifest and chunks of a complete transfer; for a process that only reads.

    Raises StorageError when they cannot be read.
    """
    with disk_errors("reading", folder):
        manifest = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))["manifest"]
        chunks = [(folder / chunk_file(n)).read_bytes() for n in range(len(manifest["chunks"]))]
    return manifest, chunks


class TransferStaging:
    """Keeps the chunks of one transfer; safe to use from several threads.

    A transfer has at most `max_bytes`, and gives way to another after `expire` seconds without a chunk.
    """

    def __init__(self, state: Path, *, max_bytes: int, expire: float, clock: Clock) -> None:
        self._folder = state / FOLDER
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
                        remedy=f"finish it, or wait: it is given up after {self._expire:g} s without a chunk",
                    )
                self.discard(current)
            if self.transfer is None:
                folder = self._folder / transfer.name
                purpose = asdict(transfer.purpose)
                about = {"transfer": transfer.name, "manifest": transfer.manifest, "note": purpose}
                make_directory(folder)
                publish_file(folder / _ABOUT, json.dumps(about).encode())
                self.transfer, self._present = transfer, set()
            self._touched = self._clock.monotonic()
            return self.missing()

    def _is_current(self, transfer: Transfer) -> bool:
        current = self.transfer
        return current is not None and (current.name, current.sha256) == (transfer.name, transfer.sha256)

    def missing(self) -> list[int]:
        """Return the numbers of missing chunks."""
        with self._lock:
            if self.transfer is None:
                return []
            return [number for number in range(len(self.transfer.pieces)) if number not in self._present]

    def put(self, name: str, number: int, data: bytes) -> ChunkResult:
        """Store a chunk, if it is wanted and is what the manifest says; a second time it changes nothing.

        Raises StorageError when the disk refuses.
        """
        with self._lock:
            transfer = self.transfer
            if transfer is None or name != transfer.name or not 0 <= number < len(transfer.pieces):
                return ChunkResult.REFUSED
            if number in self._present:
                return ChunkResult.STORED
            if not transfer.pieces[number].fits(data):
                return ChunkResult.REFUSED
            path = self._path(number)
            staging = staging_path(path.parent, path.name)
            with disk_errors("taking a chunk", path):
                staging.write_bytes(data)
                staging.replace(path)
            self._present.add(number)
            self._touched = self._clock.monotonic()
            return ChunkResult.STORED if self.missing() else ChunkResult.LAST

    def whole(self, transfer: Transfer) -> Path | None:
        """Return where the chunks of the transfer lie, after reading all of them again.

        None if another transfer has taken its place, or a chunk is missing or has turned out to be damaged.

        Raises
        ------
        ConfigError
            When they are not what the manifest says of the whole.
        StorageError
            When they cannot be read.
        """
        digest, folder = hashlib.sha256(), self._folder / transfer.name
        with self._lock:
            if not self._is_current(transfer) or self.missing():
                return None
            with disk_errors("reading", folder):
                for number, piece in enumerate(transfer.pieces):
                    chunk = self._path(number).read_bytes()
                    digest.update(chunk)
                    if not piece.fits(chunk):
                        self._present.discard(number)
            if self.missing():
                return None
        if digest.hexdigest() != transfer.sha256:
            raise ConfigError("the chunks together are not what the manifest says", where=transfer.name)
        return folder

    def discard(self, transfer: Transfer) -> None:
        """Delete the transfer and its chunks, unless another transfer has replaced it."""
        with self._lock:
            if self.transfer is None or self.transfer.sha256 != transfer.sha256:
                return
            folder = self._folder / self.transfer.name
            self.transfer, self._present = None, set()
            if folder.exists():
                remove(folder)

    def _path(self, number: int) -> Path:
        name = self.transfer.name if self.transfer is not None else ""
        return self._folder / name / chunk_file(number)

    def _restore(self) -> None:
        """What an earlier process has left: the one transfer that was under way."""
        sweep(self._folder)
        if not self._folder.is_dir():
            return
        for folder in sorted(self._folder.iterdir()):
            transfer = None if self.transfer is not None else self._read(folder)
            if transfer is None:
                remove(folder)
                continue
            sweep(folder)
            self.transfer = transfer
            names = {path.name for path in folder.iterdir()}
            self._present = {n for n in range(len(transfer.pieces)) if chunk_file(n) in names}

    def _read(self, folder: Path) -> Transfer | None:
        try:
            about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            purpose = TransferPurpose(**about["note"])
            return announced(about["transfer"], about["manifest"], purpose, self._max_bytes)
        except (OSError, ValueError, KeyError, TypeError, ConfigError, RefusedError) as problem:
            log.warning("transfer_dropped", path=str(folder), problem=str(problem))
            return None
