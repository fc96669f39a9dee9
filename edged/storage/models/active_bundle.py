"""Which bundle trains now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edged.storage.models.signatures import open_bundle

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.installed_bundles import InstalledBundles
    from edged.storage.models.registry import Registry


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
