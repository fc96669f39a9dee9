"""Settings of a device with several streams: keys that hold for all of them, and the streams themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edged import logs
from edged.config import loader
from edged.config.streams import PREFIX, changes_in
from edged.device.commands.device import SHOWN
from edged.device.settings import checked_request, value_of, values_of
from edged.errors import ConfigError
from edged.storage.files.atomic import publish_file

if TYPE_CHECKING:
    from edged.device.device_parts import DeviceParts
    from edged.device.one_stream import RunningStream
    from edged.domain.commands.rules import Answer, Request
    from edged.domain.json_fields import JsonObject
    from edged.domain.protocols import StreamChanges

log = logs.get_logger("edged.settings")


class DeviceSettings:
    """`config.get` and `config.set` at the topic of a device with several streams.

    `streams` are those that run. What was set is stored in the device's state directory and lies over the
    configuration file at every start.
    """

    def __init__(
        self, parts: DeviceParts, streams: Mapping[str, RunningStream], changes: StreamChanges
    ) -> None:
        self._parts, self._streams, self._changes = parts, streams, changes
        self._overlay = parts.config.device_dir / loader.OVERLAY

    def get(self, request: Request) -> Answer:
        """Return the configuration of every stream, or the keys that the request names, and what was set."""
        values: dict[str, Any] = {"streams": {}}
        for name, stream in list(self._streams.items()):
            values["streams"][name] = stream.settings.config.model_dump(mode="json", include=SHOWN)
        keys = request.get("keys")
        selected = values if keys is None else {key: value_of(values, key) for key in keys}
        return {"values": selected, **self._report(loader.read_overlay(self._overlay, streams=True))}

    def set(self, request: Request) -> Answer:
        """Set keys for all streams permanently, or one stream: `streams.<name>` with sections.

        Null restores what the file says. Keys that a stream has set itself stay. Raises ConfigError where a
        key cannot be set, a value is not valid, or a stream cannot start; then nothing has changed.
        """
        with self._changes.changing():
            return self._set_stream(request) if changes_in(request) else self._set_keys(request)

    def _set_keys(self, request: Request) -> Answer:
        checked_request(request)
        before = values_of(self._any(), request)
        desired = self._store(request)
        for stream in list(self._streams.values()):
            stream.settings.renew()
            stream.events.states_changed()
        return {**self._report(desired), "before": before, "after": values_of(self._any(), request)}

    def _set_stream(self, request: Request) -> Answer:
        """Add, change or remove one stream."""
        if len(request) > 1:
            raise ConfigError(
                "a stream is set alone", where=", ".join(request), remedy="send a command for each key"
            )
        ((key, change),) = request.items()
        name = key.removeprefix(PREFIX)
        earlier = loader.read_overlay(self._overlay, streams=True)
        if change is False and name not in self._names():
            raise ConfigError("no such stream", where=key, remedy=f"there are {', '.join(self._names())}")
        desired = self._store(request)
        failed = self._changes.follow(name)
        if failed is not None:
            publish_file(self._overlay, json.dumps(earlier).encode())
            raise ConfigError(f"it cannot start, and nothing was changed: {failed}", where=key)
        log.info("stream_set", stream=name, removed=change is False)
        return {**self._report(desired), "before": {key: earlier.get(key)}, "after": {key: change}}

    def _names(self) -> list[str]:
        """The streams of the configuration, also those that do not run."""
        return [config.name for config in loader.load_all(self._parts.path, plain=True)]

    def _store(self, request: Request) -> JsonObject:
        """What is set now; stored once it fits every stream."""
        merged = {**loader.read_overlay(self._overlay, streams=True), **request}
        desired = {key: value for key, value in merged.items() if value is not None}
        loader.load_device(self._parts.path, desired)
        publish_file(self._overlay, json.dumps(desired).encode())
        return desired

    def _report(self, desired: JsonObject) -> JsonObject:
        """What was set, what is in force of it, and which keys wait for a restart."""
        waiting: set[str] = set()
        for stream in list(self._streams.values()):
            waiting.update(stream.settings.report().needs_restart)
        changes = changes_in(desired)
        keys = [key for key in desired if not key.startswith(PREFIX)]
        return {
            "desired": desired,
            "reported": {
                **values_of(self._any(), keys),
                **{f"{PREFIX}{name}": self._in_force(name, change) for name, change in changes.items()},
            },
            "needs_restart": sorted(waiting),
        }

    def _in_force(self, name: str, change: Any) -> Any:
        """What a stream has of the sections that were set; false where it does not run."""
        stream = self._streams.get(name)
        if stream is None:
            return False
        if not isinstance(change, dict):
            return True
        values = stream.settings.config.model_dump(mode="json", include=set(change))
        return {
            section: {key: value for key, value in values[section].items() if key in inner}
            if isinstance(inner, dict)
            else values[section]
            for section, inner in change.items()
            if section in values
        }

    def _any(self) -> Any:
        stream = next(iter(self._streams.values()), None)
        return self._parts.config if stream is None else stream.settings.config
