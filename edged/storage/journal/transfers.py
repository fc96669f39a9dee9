"""Transfers: what their senders announce, and their chunks in a folder, compared with the manifest."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edged.domain.bundle_contents import entry_of
from edged.domain.json_fields import JsonFields
from edged.domain.training.update_manifest import TransferManifest
from edged.errors import ConfigError, RefusedError
from edged.storage.files.atomic import disk_errors

MOST_CHUNKS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ABOUT = "about.json"


@dataclass(frozen=True)
class TransferPurpose:
    """What a transfer is for.

    Attributes
    ----------
    kind
        What arrives: weights, a model file or a bundle file.
    url
        Where the device fetches the file itself, as one chunk; None where chunks are sent.
    downgrade
        Whether a signed bundle may be older than one that was taken before.
    keys
        Ids of the keys of `model.keys` that counted when it was announced.
    """

    kind: Literal["weights", "model", "bundle"] = "weights"
    url: str | None = None
    downgrade: bool = False
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transfer:
    """A transfer as it was announced: its name, manifest and purpose."""

    name: str
    manifest: TransferManifest
    purpose: TransferPurpose

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
            for number, piece in enumerate(self.manifest.chunks):
                path = folder / chunk_file(number)
                chunk = path.read_bytes() if path.exists() else b""
                digest.update(chunk)
                if entry_of(chunk) != piece:
                    torn.add(number)
        if not torn and digest.hexdigest() != self.sha256:
            raise ConfigError("the chunks together are not what the manifest says", where=self.name)
        return torn

    @property
    def sha256(self) -> str:
        """Checksum of the whole file, in hexadecimal."""
        return self.manifest.sha256


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
    found = TransferManifest.read(JsonFields(manifest, "manifest", _malformed))
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


def _malformed(*_: str) -> ConfigError:
    return ConfigError(
        "needs bytes, sha256 and chunks, each of those with bytes and sha256",
        where="manifest",
        remedy="send the manifest that belongs to the chunks",
    )


def chunk_file(number: int) -> str:
    """Return the name of the file that holds a chunk."""
    return f"{number}.chunk"


def read_transfer(folder: Path) -> tuple[TransferManifest, list[bytes]]:
    """Read manifest and chunks of a complete transfer; for a process that only reads.

    Raises StorageError when they cannot be read; CorruptError when that is no manifest.
    """
    with disk_errors("reading", folder):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        manifest = TransferManifest.from_json(about["manifest"])
        chunks = [(folder / chunk_file(n)).read_bytes() for n in range(len(manifest.chunks))]
    return manifest, chunks
