"""Bundles that came over the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from edged.storage.files.atomic import make_directory, remove, staging_path, sweep
from edged.storage.models.bundles import DESCRIPTION, Bundle

FOLDER = "bundles"


class InstalledBundles:
    """The bundles that came over the network: `bundles/<fingerprint>/` in the state directory."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def find(self, fingerprint: str | None) -> Path | None:
        """Return the directory of a bundle; None if no bundle has this fingerprint."""
        if not fingerprint or not fingerprint.isalnum():
            return None
        folder = self._folder / fingerprint
        return folder if (folder / DESCRIPTION).is_file() else None

    def install(
        self, chunks: Iterable[Path], max_bytes: int, check: Callable[[Bundle], None], keep: set[str]
    ) -> Bundle:
        """Unpack, check and publish a bundle, durably; remove all others but those of `keep`.

        `check` raises EdgedError for a bundle that must not be installed; `unpack_bundle` raises others.
        """
        from edged.storage.models.bundle_archive import publish_bundle, unpack_bundle  # seldom does one come

        make_directory(self._folder)
        sweep(self._folder)
        staging = staging_path(self._folder, "new")
        try:
            bundle = unpack_bundle(chunks, staging, max_bytes)
            check(bundle)
            final = self._folder / bundle.fingerprint
            if self.find(bundle.fingerprint) is None:
                publish_bundle(staging, final)
        finally:
            if staging.exists():
                remove(staging)
        for old in self._folder.iterdir():
            if old.name not in keep | {bundle.fingerprint}:
                remove(old)
        return Bundle.open(final)
