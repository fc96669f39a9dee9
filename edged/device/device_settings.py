"""Settings of a device with several streams: keys that hold for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edged import logs
from edged.config import loader
from edged.device.commands.replacement import StreamChanges
from edged.device.device_parts import DeviceParts
from edged.device.one_stream import RunningStream
from edged.device.settings import SHOWN, checked_request, value_of, values_of
from edged.domain.commands.rules import Answer, Request
from edged.domain.json_fields import JsonObject
from edged.storage.files.atomic import publish_file

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
        return {"values": selected, **self._report(loader.read_overlay(self._overlay))}

    def set(self, request: Request) -> Answer:
        """Set keys for all streams permanently; null restores what the file says.

        Keys that a stream has set itself stay. Raises ConfigError when a key cannot be set or a value is not
        valid; then nothing has changed.
        """
        with self._changes.changing():
            checked_request(request)
            before = values_of(self._any(), request)
            desired = self._store(request)
            for stream in list(self._streams.values()):
                stream.settings.renew()
                stream.events.states_changed()
            return {**self._report(desired), "before": before, "after": values_of(self._any(), request)}

    def _store(self, request: Request) -> JsonObject:
        """What is set now; stored once it fits every stream."""
        merged = {**loader.read_overlay(self._overlay), **request}
        desired = {key: value for key, value in merged.items() if value is not None}
        loader.load_device(self._parts.path, desired)
        publish_file(self._overlay, json.dumps(desired).encode())
        return desired

    def _report(self, desired: JsonObject) -> JsonObject:
        """What was set, what is in force of it, and which keys wait for a restart."""
        waiting: set[str] = set()
        for stream in list(self._streams.values()):
            waiting.update(stream.settings.report().needs_restart)
        return {
            "desired": desired,
            "reported": values_of(self._any(), desired),
            "needs_restart": sorted(waiting),
        }

    def _any(self) -> Any:
        stream = next(iter(self._streams.values()), None)
        return self._parts.config if stream is None else stream.settings.config
