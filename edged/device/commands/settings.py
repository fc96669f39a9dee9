"""The commands `config.get`, `config.set` and `logs.level`: the safe part of the configuration, from afar."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from edged import logs
from edged.config import loader
from edged.config.retired import RETIRED, retired_key
from edged.domain.messages.settable import settable
from edged.errors import ConfigError
from edged.storage.files.atomic import publish_file

if TYPE_CHECKING:
    from edged.config import Config
    from edged.device.commands.context import Parts

log = logs.get_logger("edged.settings")

AT_START = ("training.enabled", "training.every", "training.cron", "labels.", "report.")
"""Keys that are only read when the daemon starts; all others hold at once."""

TOLD = {
    "stream", "training", "drift", "gate", "labels", "serving", "storage", "outbox", "commands",
    "report", "log",
}  # fmt: skip
"""Sections that the state topic shows."""

SHOWN = {
    "device", "stream", "model", "training", "drift", "anomaly", "gate", "labels", "serving", "storage",
    "outbox", "commands", "report", "log",
}  # fmt: skip
"""Sections that may be asked for; what is about the broker stays here."""


class SettingsCommands:
    """What was set by command, what is in force of it, and what waits for the next start.

    What was set is kept in the state directory and lies over the configuration's file at every start.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._file = parts.config.storage.dir / loader.OVERLAY
        self.config = parts.config
        self._desired = loader.read_overlay(self._file)
        self._waiting: list[str] = []
        self._state: dict[str, Any] | None = None

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        """The configuration in force, whole or some keys of it."""
        values = self.config.model_dump(mode="json", include=SHOWN)
        keys = request.get("keys")
        if keys is None:
            return {"values": values, **self.report()}
        return {"values": {key: _value(values, key) for key in keys}, **self.report()}

    def set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change keys, for good; null takes a change back.

        Raises
        ------
        ConfigError
            When a key may not be set or a value is not valid; nothing is changed then.
        """
        known = settable()
        for key, value in request.items():
            if key in RETIRED:
                if value is None:  # an earlier version may have set it
                    continue
                raise retired_key(key, key)
            if key not in known:
                raise ConfigError(
                    "this key cannot be set from afar", where=key, remedy=f"{', '.join(known)} can"
                )
        desired = {k: v for k, v in (self._desired | request).items() if v is not None}
        wanted = loader.load(self._parts.path, overlay=desired)
        publish_file(self._file, json.dumps(desired).encode())
        self._desired = desired
        self._apply(wanted)
        self._state = None
        log.info("config_set", keys=sorted(request), needs_restart=self._waiting)
        self._parts.publish_states()
        return self.report()

    def report(self) -> dict[str, Any]:
        """What was asked for, what is in force of it, and which of it waits for the next start."""
        sections = {key.split(".")[0] for key in self._desired}
        values = self.config.model_dump(mode="json", include=sections)
        reported = {key: _value(values, key) for key in self._desired}
        return {"desired": self._desired, "reported": reported, "needs_restart": self._waiting}

    def state(self) -> dict[str, Any]:
        """The retained state `config`, which is asked for each time that states are told."""
        if self._state is None:
            self._state = self.config.model_dump(mode="json", include=TOLD) | self.report()
        return self._state

    def level(self, request: dict[str, Any]) -> dict[str, Any]:
        """The level of the log, until the next start."""
        logs.configure(request["level"], self.config.log.format)
        return {"level": request["level"]}

    # ---- inside ----------------------------------------------------------------------------

    def _apply(self, wanted: Config) -> None:
        """Let what can change while the daemon runs hold from now on."""
        parts, before = self._parts, self.config
        changes: dict[str, dict[str, Any]] = {}
        waiting = []
        for key in settable():
            section, name = key.split(".")
            value = getattr(getattr(wanted, section), name)
            if value == getattr(getattr(before, section), name):
                continue
            if key.startswith(AT_START):
                waiting.append(key)
            else:
                changes.setdefault(section, {})[name] = value
        updates = {s: getattr(before, s).model_copy(update=values) for s, values in changes.items()}
        self.config = before.model_copy(update=updates)
        self._waiting = waiting
        if changes.keys() & {"training", "drift"}:
            parts.learner.configure(self.config)
        if "gate" in changes:
            parts.promoter.configure(self.config.gate)
            parts.server.configure(self.config.gate)
        if "log" in changes:
            logs.configure(self.config.log.level, self.config.log.format)


def _value(values: dict[str, Any], key: str) -> Any:
    found: Any = values
    for name in key.split("."):
        if not isinstance(found, dict) or name not in found:
            raise ConfigError("there is no such key", where=key, remedy="config.get without keys shows all")
        found = found[name]
    return found
