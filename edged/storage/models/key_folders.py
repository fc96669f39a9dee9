"""The state directories of keys that have models of their own, below `by-key/` of the stream's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from edged.domain.judging.own_or_common import ContestState
from edged.domain.training.message import Message
from edged.errors import StorageError, TrainingError
from edged.storage.files import atomic
from edged.storage.files.checksummed_json import read_sealed, seal
from edged.storage.files.damaged_database import rename_damaged
from edged.storage.samples.erasure import erase_files

FOLDER = "by-key"  # `keys/` has public keys
KEY_FILE = "key.json"
LONGEST = 150  # bytes of a name: file systems take 255, and what is set aside gets more
HASHED = "~"


@dataclass(frozen=True)
class KeyRecord(Message):
    """What is known of a key whose model is not loaded: how far it has learned, and what answered last."""

    key: str
    consumed: int = 0
    runs: int = 0
    version: int = 0
    contest: ContestState | None = None
    accuracy: float | None = None


def folder_name(key: str) -> str:
    """The name of a key's directory: as much of the key as a file system takes.

    >>> folder_name("pump/7"), folder_name(""), folder_name("..")
    ('=pump%2F7', '=', '=%2E%2E')
    """
    name = "=" + quote(key, safe=" ,()+@", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")
    if len(name) <= LONGEST:
        return name
    return HASHED + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]


class KeyFolders:
    """Finds, makes and removes the directories of keys; `state` is the stream's state directory."""

    def __init__(self, state: Path) -> None:
        self._root = state / FOLDER

    def of(self, key: str) -> Path:
        """The directory of a key, whether there is one or not."""
        return self._root / folder_name(key)

    def records(self) -> dict[str, KeyRecord]:
        """What is known of each key that has a directory; of one without a readable record, its name."""
        found = {}
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if folder.name.startswith((HASHED, "=")) and ".damaged-" not in folder.name and folder.is_dir():
                record = _read(folder)
                if record is not None:
                    found[record.key] = record
        return found

    def write(self, record: KeyRecord) -> None:
        """Write what is known of a key, durably; StorageError when the disk refuses."""
        atomic.publish_file(self.of(record.key) / KEY_FILE, seal(record.to_json()))

    def make(self, key: str) -> Path:
        """Make the directory of a key; StorageError when the disk refuses."""
        atomic.make_directory(self.of(key))
        return self.of(key)

    def erase(self, key: str | None = None) -> None:
        """Erase the directory of a key, or of all, its bytes overwritten; StorageError from the disk."""
        erase_files([self._root if key is None else self.of(key)])

    def set_aside(self, key: str, now: float) -> str:
        """Rename the damaged directory of a key, at Unix time `now`; its new name in the state directory."""
        return f"{FOLDER}/{rename_damaged(self.of(key), now)}"


def _read(folder: Path) -> KeyRecord | None:
    """The record in a key's directory; without one that can be read, as if nothing had been learned."""
    try:
        return KeyRecord.from_json(read_sealed(folder / KEY_FILE))
    except (StorageError, TrainingError):
        if folder.name.startswith(HASHED):
            return None  # nobody knows whose it is: it is found again when that key has a model again
        return KeyRecord(unquote(folder.name[1:], errors="surrogatepass"))
