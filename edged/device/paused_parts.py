"""Which parts of the device are paused by command, across restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.storage.models.registry import Registry

PAUSED = "paused"  # name of the stored value


class PausedParts:
    """Names of the paused parts, stored durably: `training`, `serving`, `ingest`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._names: frozenset[str] = frozenset(registry.get_value(PAUSED) or ())

    @property
    def names(self) -> list[str]:
        """The paused parts, sorted by name."""
        return sorted(self._names)

    def set(self, part: str, *, paused: bool) -> bool:
        """Store whether a part is paused; False if that was so before.

        Raises StorageError when the disk refuses it; then nothing has changed.
        """
        after = self._names | {part} if paused else self._names - {part}
        if after == self._names:
            return False
        self._registry.set_value(PAUSED, sorted(after))
        self._names = after
        return True
