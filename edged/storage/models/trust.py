"""What a device remembers about what it takes in: `trust.json` in the state directory.

Neither a restore nor a wipe touches this file: an older state must not bring back trust that has ended.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edged.errors import CorruptError, RefusedError
from edged.logs import get_logger
from edged.storage.files.atomic import publish_file
from edged.storage.files.checksummed_json import read_sealed, seal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Way = Literal["configured", "installed"]
"""How a bundle came: named in the configuration, or over the network."""

FILE = "trust.json"
TRIES = 2  # a power cut may end the first one
MOST_OPENED = 64

log = get_logger("edged.trust")


class Trust:
    """Durable memory of first openings and of versions of signed bundles.

    Safe to use from several threads of one process.

    `state` is the state directory. A damaged file is logged and replaced with the next change.

    Attributes
    ----------
    new
        Whether there was no file: the state directory is new, or of an earlier version.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._lock = threading.RLock()
        self.new = not self._path.exists()
        self._values: Mapping[str, Any] = {} if self.new else self._read()

    def _read(self) -> dict[str, Any]:
        try:
            return read_sealed(self._path)
        except CorruptError as problem:
            log.error("trust_lost", problem=problem.line(), remedy="see docs/security.md")
            return {}

    def _write(self, **values: Any) -> None:
        """Change some of the values, durably; StorageError when the disk refuses, and nothing has changed."""
        changed = {**self._values, **values}
        publish_file(self._path, seal(changed))
        self._values = changed

    # ---- first openings --------------------------------------------------------------------

    def begin(self, sha256: str) -> None:
        """Record that a transfer is about to be opened; call `end` when that is over, whatever came of it.

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

    def end(self, sha256: str) -> None:
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
        """Allow older bundles: whatever is taken next is the highest version."""
        with self._lock:
            self._write(versions={})

    def _raised(self, way: Way, signer: str, version: int) -> dict[str, dict[str, int]]:
        versions: dict[str, dict[str, int]] = dict(self._values.get("versions", {}))
        if signer:
            known = versions.get(way, {})
            versions[way] = {**known, signer: max(version, known.get(signer, 0))}
        return versions
