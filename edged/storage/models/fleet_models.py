"""Models of a fleet as they came: `fleet/<fingerprint>.bin` in the state directory, the newest few."""

from __future__ import annotations

from pathlib import Path

from edged.storage.files.atomic import disk_errors, make_directory, publish_file

FOLDER = "fleet"
KEPT = 3


class FleetModels:
    """The models of one state directory; whose weights they are is checked by who unpacks them."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def path(self, digest: str) -> Path | None:
        """Where a model lies; None where it does not."""
        path = self._folder / f"{digest}.bin"
        return path if path.is_file() else None

    def put(self, digest: str, blob: bytes, keep: tuple[str, ...] = ()) -> Path:
        """Keep a model, durably, and remove the oldest that is not among `keep`.

        Raises StorageError when the disk refuses.
        """
        make_directory(self._folder)
        path = self._folder / f"{digest}.bin"
        publish_file(path, blob)
        with disk_errors("removing old models", self._folder):
            there = sorted(self._folder.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns)
            spared = {f"{name}.bin" for name in keep} | {path.name}
            for old in there[: max(0, len(there) - KEPT)]:
                if old.name not in spared:
                    old.unlink()
        return path

    def remove(self, digest: str) -> None:
        """Remove a model that is damaged."""
        with disk_errors("removing a model", self._folder):
            (self._folder / f"{digest}.bin").unlink(missing_ok=True)
