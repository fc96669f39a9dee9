"""What commands have changed across restarts: configuration keys, and which parts are paused."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged import logs
from edged.config import Config, loader
from edged.config.web import WebConfig
from edged.device.events import Events
from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.publisher import OutboundRouter
from edged.domain.commands.rules import Answer, Request
from edged.domain.json_fields import JsonObject
from edged.domain.messages.requests import settable
from edged.domain.training.message import Message
from edged.errors import ConfigError, RefusedError
from edged.storage.files.atomic import publish_file

log = logs.get_logger("edged.settings")

AT_START = ("training.enabled", "training.every", "labels.", "report.")
"""Keys that are only read when the daemon starts; all others take effect at once."""

PAUSED = "paused"  # name of the registry's value

SHOWN = {
    "device", "stream", "model", "training", "drift", "anomaly", "gate", "labels", "serving", "storage",
    "outbox", "commands", "report", "log",
}  # fmt: skip
"""Sections that `config.get` returns; those about the broker are not among them."""

PUBLISHED = {
    "stream", "training", "drift", "gate", "labels", "serving", "storage", "outbox", "commands",
    "report", "log",
}  # fmt: skip
"""Sections in the retained state `config`."""


def page_address(web: WebConfig | None, hostname: str | None = None) -> str | None:
    """Return where other machines find the device page; None if they cannot, or its host is not known.

    `hostname` is taken where the section names no host.
    """
    if web is None or web.address is None or web.is_local:
        return None
    host, port = web.address
    name = next(iter(web.allowed_hosts), hostname if host in ("0.0.0.0", "::") else host)  # noqa: S104
    if name is None:
        return None
    return f"https://{f'[{name}]' if ':' in name else name}:{port}/"


@dataclass(frozen=True)
class SettingsReport(Message):
    """Keys that were set by command, with their values in force, and keys that wait for a restart."""

    desired: JsonObject
    reported: JsonObject
    needs_restart: tuple[str, ...]


@dataclass(frozen=True)
class ConfigState(Message):
    """The retained state `config`: sections of the configuration, what was set, and where the page is."""

    sections: JsonObject
    settings: SettingsReport
    page: str | None

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return {**self.sections, **self.settings.to_json(), "page": self.page}


class Settings:
    """The configuration in force; `config.get` and `config.set` read and change it.

    Keys that are set by command are stored in the state directory and override the configuration file at
    every start.

    `pipeline`: its configuration is the one in force at the start; changes are applied to its parts. `path`:
    the configuration file. `events` hears of changes.
    """

    def __init__(self, pipeline: LivePipeline, path: Path, events: Events) -> None:
        self._pipeline = pipeline
        self._events = events
        self._path = path
        self._overlay = pipeline.config.storage.dir / loader.OVERLAY
        self.config: Config = pipeline.config
        self._wanted: Config = pipeline.config  # with what waits for the next start
        self._desired = loader.read_overlay(self._overlay)
        self._waiting: list[str] = []
        self._state: ConfigState | None = None

    def get(self, request: Request) -> Answer:
        """Return the configuration in force, or the keys that the request names."""
        values = self.config.model_dump(mode="json", include=SHOWN)
        keys = request.get("keys")
        found = values if keys is None else {key: value_of(values, key) for key in keys}
        return {"values": found, **self.report().to_json()}

    def set(self, request: Request) -> Answer:
        """Set keys permanently; null restores the value of the configuration file.

        The answer has the values of these keys, and of others that have changed in the file, before and
        after.

        Raises ConfigError when a key cannot be set or a value is not valid; then nothing has changed.
        """
        known = checked_request(request)
        desired = {k: v for k, v in {**self._desired, **request}.items() if v is not None}
        wanted = loader.load(self._path, overlay=desired, stream=self.config.name or None)
        publish_file(self._overlay, json.dumps(desired).encode())
        self._desired = desired
        self._apply(wanted)
        self._state = None
        before, self._wanted = self._wanted, wanted
        log.info("config_set", keys=sorted(request), needs_restart=self._waiting)
        old, new = (values_of(config, known) for config in (before, wanted))
        changed = [key for key in known if key in request or old[key] != new[key]]
        self._events.states_changed()
        return {
            **self.report().to_json(),
            "before": {key: old[key] for key in changed},
            "after": {key: new[key] for key in changed},
        }

    def renew(self) -> None:
        """Apply what was set for all streams of the device; what was set for this one lies over it."""
        self._wanted = loader.load(self._path, stream=self.config.name or None)
        self._apply(self._wanted)
        self._state = None

    def report(self) -> SettingsReport:
        """Return the keys that were set, their values in force, and which wait for a restart."""
        reported = values_of(self.config, self._desired)
        return SettingsReport(self._desired, reported, tuple(self._waiting))

    def state(self) -> ConfigState:
        """Return the retained state `config`."""
        if self._state is None:
            sections = self.config.model_dump(mode="json", include=PUBLISHED)
            page = page_address(self.config.web)
            if page is not None and self.config.name:
                page = f"{page}streams/{self.config.name}/"
            self._state = ConfigState(sections, self.report(), page)
        return self._state

    def _apply(self, wanted: Config) -> None:
        """Apply the keys that can change while the daemon runs; note the others."""
        before, pipeline = self.config, self._pipeline
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
            pipeline.scheduler.configure(self.config)
        if "gate" in changes:
            pipeline.evaluator.configure(self.config.gate)
            pipeline.predictor.configure(self.config.gate)
        if "log" in changes:
            logs.configure(self.config.log.level)


class Pauses:
    """`pause` and `resume` for training and serving; a pause lasts across restarts.

    While `training` is paused, only commands start runs, and an interrupted run waits; while `serving` is
    paused, edged publishes no predictions.
    """

    def __init__(self, pipeline: LivePipeline, outbound: OutboundRouter, events: Events) -> None:
        self._pipeline = pipeline
        self._outbound = outbound
        self._events = events
        self._names: frozenset[str] = frozenset(pipeline.registry.get_value(PAUSED) or ())

    @property
    def names(self) -> list[str]:
        """The paused parts, sorted by name."""
        return sorted(self._names)

    def start(self) -> None:
        """Pause the parts that were paused when the daemon ended."""
        for part in self.names:
            self._switch(part, paused=True)

    def pause(self, request: Request) -> Answer:
        """Pause the part `what`, training by default; with `hold` false resume it.

        Raises RefusedError where `resume` must be signed and this command need not be.
        """
        hold, unsigned = request.get("hold", True), self._pipeline.config.commands.unsigned()
        if not hold and "pause" in unsigned and "resume" not in unsigned:
            raise RefusedError("resuming must be signed", where="hold", remedy="send the command resume")
        return self._set(request.get("what", "training"), paused=hold)

    def resume(self, request: Request) -> Answer:
        """Resume the part `what`, training by default."""
        return self._set(request.get("what", "training"), paused=False)

    def _set(self, part: str, *, paused: bool) -> Answer:
        before = {"paused": self.names}
        names = self._names | {part} if paused else self._names - {part}
        if names != self._names:
            self._pipeline.registry.set_value(PAUSED, sorted(names))
            self._names = names
            self._switch(part, paused=paused)
            self._events.states_changed()
        after = {"paused": self.names}
        return after | {"before": before, "after": after}

    def _switch(self, part: str, *, paused: bool) -> None:
        if part == "training":
            self._pipeline.scheduler.paused = paused
            self._pipeline.worker.wake()
        else:
            self._outbound.silent = paused


def checked_request(request: Mapping[str, Any]) -> Collection[str]:
    """Return the keys that can be set by command; raise ConfigError if `request` has another one."""
    known = settable()
    for key in request:
        if key not in known:
            remedy = f"send config.replace; config.set takes {', '.join(known)}"
            raise ConfigError("config.set does not take this key", where=key, remedy=remedy)
    return known


def values_of(config: Config, keys: Collection[str]) -> JsonObject:
    """Return the values of dotted keys in a configuration."""
    values = config.model_dump(mode="json", include={key.split(".")[0] for key in keys})
    return {key: value_of(values, key) for key in keys}


def value_of(values: Any, key: str) -> Any:
    """Return the value of a dotted key in a nested dictionary.

    Raises ConfigError when there is no such key.
    """
    found = values
    for name in key.split("."):
        if not isinstance(found, dict) or name not in found:
            raise ConfigError("there is no such key", where=key, remedy="config.get without keys shows all")
        found = found[name]
    return found
