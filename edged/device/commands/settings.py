"""The commands `config.get`, `config.set` and `logs.level`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged import logs
from edged.device.settings import value_of

if TYPE_CHECKING:
    from edged.device.events import Events
    from edged.device.settings import Settings
    from edged.domain.commands.rules import Answer, Request

SHOWN = {
    "device", "stream", "model", "training", "drift", "anomaly", "gate", "labels", "serving", "storage",
    "outbox", "commands", "report", "log",
}  # fmt: skip
"""Sections that `config.get` returns; those about the broker are not among them."""


class SettingsCommands:
    """`config.get`, `config.set` and `logs.level`: read and change the configuration in force."""

    def __init__(self, settings: Settings, events: Events) -> None:
        self._settings = settings
        self._events = events

    def get(self, request: Request) -> Answer:
        """Return the configuration in force, or the keys that the request names."""
        values = self._settings.config.model_dump(mode="json", include=SHOWN)
        keys = request.get("keys")
        if keys is None:
            return {"values": values, **self._settings.report().to_json()}
        return {"values": {key: value_of(values, key) for key in keys}, **self._settings.report().to_json()}

    def set(self, request: Request) -> Answer:
        """Set keys permanently; null restores the value of the configuration file.

        Raises ConfigError when a key cannot be set or a value is not valid; then nothing has changed.
        """
        change = self._settings.change(request)
        self._events.states_changed()
        return {**self._settings.report().to_json(), **change.to_json()}

    def level(self, request: Request) -> Answer:
        """Set the log level until the next restart."""
        before = {"level": logs.level()}
        logs.configure(request["level"], self._settings.config.log.format)
        after = {"level": request["level"]}
        return after | {"before": before, "after": after}
