"""What a device remembers about what it takes in: `trust.json` in the state directory, and a copy.

Neither a restore nor a wipe touches these files: an older state must not bring back trust that has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from edged.errors import CorruptError, RefusedError
from edged.logs import disk_may_refuse, get_logger
from edged.signing import Keys, key_id
from edged.storage.files.atomic import disk_errors, make_directory, publish_file
from edged.storage.files.checksummed_json import seal, unseal

Way = Literal["configured", "installed"]
"""How a bundle came: named in the configuration, or over the network."""

FILE, COPY, KEYS = "trust.json", "trust.copy.json", "keys"
TRIES = 2  # a power cut may end the first one
MOST_OPENED = 64
_NONE: Mapping[str, str | None] = {}

log = get_logger("edged.trust")


class Trust:
    """Durable memory of first openings, versions of signed bundles, and keys that were replaced.

    Safe to use from several threads of one process.

    `state` is the state directory; below it `folder` has the files of keys that came by command. If one of
    the two files is damaged or missing, the other one counts; if both are damaged, everything is forgotten
    (`lost`). Raises StorageError when they cannot be read.
    """

    def __init__(self, state: Path) -> None:
        self._paths, self.folder = (state / FILE, state / COPY), state / KEYS
        self._lock = threading.RLock()
        there = any(path.exists() for path in self._paths)
        self._values: Mapping[str, Any] = self._read() if there else {}

    @property
    def lost(self) -> bool:
        """Whether both files were damaged, and older bundles have not been allowed since."""
        return bool(self._values.get("lost"))

    def _read(self) -> Mapping[str, Any]:
        problems = []
        for path in self._paths:
            try:
                found = unseal(_content(path), path)
            except CorruptError as problem:
                problems.append(problem.line())
            else:
                if problems:
                    log.warning("trust_damaged", problem=problems[0], action=f"using {path.name}")
                return found
        log.error("trust_lost", problem="; ".join(problems), remedy="see docs/security.md")
        return {"lost": True}

    def repair(self) -> None:
        """Write both files again where one is not as it should be; a disk that refuses keeps the other."""
        with disk_may_refuse(log, "trust_not_repaired", action="trying again at the next start"):
            if self._values and any(_content(path) != seal(self._values) for path in self._paths):
                self._write()

    def _write(self, **values: Any) -> None:
        """Change some of the values, durably; StorageError when the disk refuses, and nothing has changed."""
        changed = {**self._values, **values}
        for path in reversed(self._paths):  # the first one counts: it is written last
            publish_file(path, seal(changed))
        self._values = changed

    # ---- first openings --------------------------------------------------------------------

    def begin_opening(self, sha256: str) -> None:
        """Record that a transfer is about to be opened; `end_opening` must follow, whatever comes of it.

        Raises RefusedError when the process ended `TRIES` times in between; StorageError when the disk
        refuses.
        """
        with self._lock:
            begun = dict(self._values.get("begun", {}))
            tries = begun.get(sha256, 0)
            if tries >= TRIES:
                raise RefusedError(
                    f"the daemon ended {tries} times while it opened this transfer",
                    remedy="see the log of those starts; to try again, send it under another name",
                )
            self._write(begun={**begun, sha256: tries + 1})

    def end_opening(self, sha256: str) -> None:
        """Record that the process has survived opening a transfer."""
        with self._lock:
            begun = self._values.get("begun", {})
            if sha256 in begun:
                self._write(begun={key: tries for key, tries in begun.items() if key != sha256})

    def opened(self, sha256: str) -> int | None:
        """Return the version of a configured bundle that was opened here before; None if it was not.

        `sha256` is that of its file, or of its `bundle.json`.
        """
        return dict(self._values.get("opened", ())).get(sha256)

    def record_opened(self, sha256: str, version: int, signer: str) -> None:
        """Record a configured bundle whose first opening went well, and its version."""
        with self._lock:
            others = [entry for entry in self._values.get("opened", ()) if entry[0] != sha256]
            self._write(
                opened=[*others, [sha256, version]][-MOST_OPENED:],
                versions=self._raised("configured", signer, version),
            )

    # ---- versions of signed bundles --------------------------------------------------------

    def least_version(self, way: Way, keys: Sequence[str]) -> int:
        """Return the highest version that was taken of bundles signed by these keys, given by their ids.

        A `configured` bundle is compared with configured ones, an `installed` one with all.
        """
        versions: dict[str, dict[str, int]] = self._values.get("versions", {})
        ways = [way] if way == "configured" else list(versions)
        return max((versions.get(name, {}).get(key, 0) for name in ways for key in keys), default=0)

    def record_installed(self, signer: str, version: int) -> None:
        """Record the version of a bundle that came over the network, before anything is made of it."""
        with self._lock:
            self._write(versions=self._raised("installed", signer, version))

    def forget_versions(self) -> None:
        """Allow older bundles: whatever is taken next is the highest version. Ends `lost`."""
        with self._lock:
            self._write(versions={}, lost=False)

    # ---- keys that took the place of others ------------------------------------------------

    @property
    def replaced(self) -> Mapping[str, str | None]:
        """Ids of replaced keys with those of their successors, None for a revoked one; new at each change."""
        found: Mapping[str, str | None] = self._values.get("replaced", _NONE)
        return found

    def current(self, files: Iterable[Path]) -> list[Path]:
        """Return the public keys that count now, each once, where the configuration names these.

        Raises ConfigError when a file holds no public key.
        """
        found = (self._current(file) for file in files if file != self.folder)
        return list(dict.fromkeys(file for file in found if file is not None))

    def _current(self, file: Path) -> Path | None:
        if not self.replaced:
            return file
        key = key_id(file)
        while key in self.replaced:
            successor = self.replaced[key]
            if successor is None:
                return None
            key, file = successor, self.folder / f"{successor}.pub"
        return file

    def replace_key(self, old: str, new: tuple[str, bytes] | None) -> None:
        """Let a key, given by its id, count no more, and `new`, its id and content, in its place.

        Raises RefusedError when `new` was replaced or revoked before; StorageError when the disk refuses.
        """
        with self._lock:
            successor = None
            if new is not None:
                successor, content = new
                if successor == old or successor in self.replaced:
                    raise RefusedError("is the same key, or was replaced or revoked before", where=successor)
                make_directory(self.folder)
                publish_file(self.folder / f"{successor}.pub", content)
            self._write(replaced={**self.replaced, old: successor})

    def _raised(self, way: Way, signer: str, version: int) -> dict[str, dict[str, int]]:
        versions: dict[str, dict[str, int]] = dict(self._values.get("versions", {}))
        if signer:
            known = versions.get(way, {})
            versions[way] = {**known, signer: max(version, known.get(signer, 0))}
        return versions


def _content(path: Path) -> bytes:
    with disk_errors("reading", path):
        return path.read_bytes() if path.exists() else b""


class CurrentKeys:
    """The public keys that count now where the configuration names `files`; see `TrustedKeys`.

    Raises ConfigError when a file holds no public key of Ed25519.
    """

    def __init__(self, trust: Trust, files: Sequence[Path]) -> None:
        self._trust, self._files = trust, files
        self._load()

    def _load(self) -> None:
        self._replaced = self._trust.replaced
        self._keys = Keys(self._trust.current(self._files))

    def signer(self, message: bytes, signature: bytes) -> Path | None:
        """Find the key that made the signature of `message`; None if no trusted key did."""
        if self._replaced is not self._trust.replaced:
            self._load()
        return self._keys.signer(message, signature)
