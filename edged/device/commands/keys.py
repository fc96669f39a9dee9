"""The commands `keys.rotate` and `keys.revoke`: other keys than those of the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edged.config import Config
from edged.domain.commands.rules import Answer, Request
from edged.errors import RefusedError
from edged.signing import key_id, parse_public
from edged.storage.models.trust import Trust


def counting(config: Config, trust: Trust) -> list[Mapping[str, Any]]:
    """Return the keys that count now: `id`, `file`, and what they sign in `for`: commands, bundles."""
    lists = {"commands": trust.current(config.commands.keys), "bundles": trust.current(config.model.keys)}
    uses: dict[str, dict[str, Any]] = {}
    for use, files in lists.items():
        for file in files:
            entry = uses.setdefault(key_id(file), {"id": key_id(file), "file": str(file), "for": []})
            entry["for"].append(use)
    return list(uses.values())


def _uses(keys: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What each key signs, by its id."""
    return {key["id"]: key["for"] for key in keys}


class KeyCommands:
    """`keys.rotate` and `keys.revoke`, which the dispatcher takes with a signature only.

    `config` names the first keys; `trust` remembers which ones took their place.
    """

    def __init__(self, config: Config, trust: Trust) -> None:
        self._config, self._trust = config, trust

    def rotate(self, request: Request) -> Answer:
        """Let the public key `new` (PEM) count wherever `old`, an id or PEM, counts now.

        Raises ConfigError when a field is no key; RefusedError when `old` does not count, or `new` did
        before.
        """
        return self._replace(self._counting("old", request), parse_public(request["new"], "new"))

    def revoke(self, request: Request) -> Answer:
        """Let `key`, an id or PEM, count no more.

        Raises ConfigError when it is no key; RefusedError when it does not count now, or is the last one
        that may sign commands.
        """
        key = self._counting("key", request)
        if self._ids(self._config.commands.keys) == {key}:
            raise RefusedError(
                "no key would be left to sign commands", where=key, remedy="replace it with keys.rotate"
            )
        return self._replace(key, None)

    def follow(self, old: str, new: str | None) -> None:
        """Replace a key here, too, where it counts; None revokes it."""
        key = parse_public(old, "old")[0] if old.startswith("-") else old
        if key in self._ids(self._config.commands.keys) | self._ids(self._config.model.keys):
            self._trust.replace_key(key, None if new is None else parse_public(new, "new"))

    def _replace(self, key: str, new: tuple[str, bytes] | None) -> Answer:
        before = counting(self._config, self._trust)
        self._trust.replace_key(key, new)
        after = counting(self._config, self._trust)
        change = {"before": {"keys": _uses(before)}, "after": {"keys": _uses(after)}}
        return {"keys": after, **change}

    def _counting(self, field: str, request: Request) -> str:
        """The id of a key that counts now."""
        if not self._config.commands.keys:
            raise RefusedError("commands are not signed here", where="commands.keys", remedy="name keys")
        given = request[field]
        key = parse_public(given, field)[0] if given.startswith("-") else given
        known = self._ids(self._config.commands.keys) | self._ids(self._config.model.keys)
        if key not in known:
            raise RefusedError(
                f"{key!r} is no key that counts here",
                where=field,
                remedy=f"one of {', '.join(sorted(known))}",
            )
        return str(key)

    def _ids(self, files: list[Path]) -> set[str]:
        return {key_id(file) for file in self._trust.current(files)}
