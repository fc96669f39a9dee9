"""Transfers: what their senders announce, and their chunks in a folder, compared with the manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from edged.domain.json_fields import JsonFields
from edged.domain.lean_dataclasses import dataclass
from edged.errors import ConfigError, RefusedError
from edged.storage.files.atomic import disk_errors

MOST_CHUNKS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ABOUT = "about.json"


@dataclass(frozen=True)
class ChunkDigest:
    """Expected size and checksum of one chunk."""

    size: int
    sha256: str

    def fits(self, data: bytes) -> bool:
        """Return whether `data` is this chunk."""
        return len(data) == self.size and hashlib.sha256(data).hexdigest() == self.sha256


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
    downgrade
        Whether a signed bundle may be older than one that was taken before.
    keys
        Ids of the keys of `model.keys` that counted when it was announced.
    """

    kind: Literal["weights", "model", "bundle"] = "weights"
    mix: bool = True
    url: str | None = None
    downgrade: bool = False
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transfer:
    """A transfer as it was announced: its name, manifest, purpose and chunks."""

    name: str
    manifest: dict[str, Any]
    purpose: TransferPurpose
    pieces: tuple[ChunkDigest, ...]

    def torn(self, folder: Path) -> set[int]:
        """Read the chunks in a folder, and return the numbers of those that are missing or damaged.

        Raises
        ------
        ConfigError
            When all are there, and are not what the manifest says of the whole.
        StorageError
            When they cannot be read.
        """
        digest, torn = hashlib.sha256(), set[int]()
        with disk_errors("reading", folder):
            for number, piece in enumerate(self.pieces):
                path = folder / chunk_file(number)
                chunk = path.read_bytes() if path.exists() else b""
                digest.update(chunk)
                if not piece.fits(chunk):
                    torn.add(number)
        if not torn and digest.hexdigest() != self.sha256:
            raise ConfigError("the chunks together are not what the manifest says", where=self.name)
        return torn

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


def read_transfer(folder: Path) -> tuple[Mapping[str, Any], list[bytes]]:
    """Read manifest and chunks of a complete transfer; for a process that only reads.

    Raises StorageError when they cannot be read.
    """
    with disk_errors("reading", folder):
        manifest = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["manifest"]
        chunks = [(folder / chunk_file(n)).read_bytes() for n in range(len(manifest["chunks"]))]
    return manifest, chunks
