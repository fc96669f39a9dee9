"""Bundles that came over the network, and which bundle trains now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edged.storage.files.atomic import make_directory, sweep
from edged.storage.models.bundles import DESCRIPTION, Bundle
from edged.storage.models.registry import Registry
from edged.storage.models.signatures import open_bundle

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

    def install(self, file: Path, max_bytes: int, check: Callable[[Bundle], None], keep: set[str]) -> Bundle:
        """Unpack, check and publish the bundle in a file, durably; remove all others but those of `keep`.

        `check` raises EdgedError for a bundle that must not be installed; `unpack_bundle` raises others.
        """
        from edged.storage.models.bundle_archive import keep_only, unpack_to  # seldom does one come

        make_directory(self._folder)
        sweep(self._folder)
        bundle = unpack_to(file, self._folder, lambda one: one.fingerprint, check, max_bytes)
        keep_only(self._folder, keep | {bundle.fingerprint})
        return bundle


class ActiveBundle:
    """The bundle that the champion belongs to, from which the device trains.

    An installed bundle is active from the moment on in which its model takes over, and until a rollback to a
    model of another bundle.

    `configured`, that of `model.bundle`, is active unless the champion's record in `registry` names one of
    the `installed`; if there are any public `keys`, one of them must have signed an installed bundle.
    """

    def __init__(
        self, configured: Bundle, installed: InstalledBundles, registry: Registry, keys: Sequence[Path]
    ) -> None:
        self._configured, self._installed = configured, installed
        self._registry, self._keys = registry, keys

    def path(self) -> Path:
        """Return the directory of the active bundle."""
        version = self._registry.champion()
        own = None if version is None else self._registry.get(version).data.bundle
        return self._installed.find(own) or self._configured.path

    def open(self) -> Bundle:
        """Open the active bundle; an installed one is verified.

        Raises EdgedError when it is damaged or not signed by one of the keys.
        """
        path = self.path()
        return self._configured if path == self._configured.path else open_bundle(path, self._keys)
