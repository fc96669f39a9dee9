"""Commands about models: which of them serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.loop.succession import Succession


class ModelCommands:
    """`rollback`; `publish_states` is called after each change."""

    def __init__(self, succession: Succession, publish_states: Callable[[], None]) -> None:
        self._succession = succession
        self._publish_states = publish_states

    def roll_back(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serve an earlier model again."""
        to = request.get("version")
        if to is not None and (isinstance(to, bool) or not isinstance(to, int)):
            raise ConfigError(f"{to!r} is no version number", where="version")
        change = self._succession.roll_back("command", to)
        self._publish_states()
        return change
