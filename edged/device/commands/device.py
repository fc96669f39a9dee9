"""Commands about the device itself: its state, its configuration, and which parts are paused."""

from __future__ import annotations

from collections.abc import Iterable

from edged import __version__, logs
from edged.device.events import Events
from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.publisher import OutboundRouter
from edged.device.reporting.status import StatusCollector
from edged.device.settings import PausedParts, Settings, value_of
from edged.domain.commands.rules import Answer, Request
from edged.errors import RefusedError
from edged.mqtt.client.session import Session

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
        logs.configure(request["level"])
        after = {"level": request["level"]}
        return after | {"before": before, "after": after}


class QueryCommands:
    """`ping`, `status` and `capabilities`: describe the device and its state."""

    def __init__(self, pipeline: LivePipeline, status: StatusCollector, session: Session) -> None:
        self._pipeline = pipeline
        self._status = status
        self._session = session

    def ping(self, _: Request) -> Answer:
        """Return the time of the device and its version."""
        return {"pong": True, "ts": self._pipeline.clock.now(), "version": __version__}

    def status(self, _: Request) -> Answer:
        """Return the summary that `edged status` prints."""
        return self._status.status().to_json()

    def capabilities(self, names: Iterable[str]) -> Answer:
        """Describe the device, and its commands `names` with the schemas of their requests and answers."""
        from edged.domain.messages.requests import REQUESTS, whole
        from edged.domain.messages.sent import ANSWERS

        config, schema = self._pipeline.config, self._pipeline.schema
        commands = {
            name: {
                "description": REQUESTS.get(name, {}).get("description", ""),
                "request": whole(name),
                "answer": ANSWERS.get(name, {"type": "object"}),
            }
            for name in sorted(names)
        }
        return {
            "device": config.device.id,
            "version": __version__,
            "protocol": self._session.protocol,
            "engine": self._pipeline.scheduler.engine,
            "task": schema.task,
            "features": list(schema.names) if schema.names else schema.measured,
            "classes": list(schema.known_classes),
            "codec": config.stream.codec,
            "root": config.topic_root,
            "commands": commands,
        }


class PauseCommands:
    """`pause` and `resume` for training and serving; a pause lasts across restarts.

    While `training` is paused, only commands start runs, and an interrupted run waits; while `serving` is
    paused, edged publishes no predictions.
    """

    def __init__(
        self, pipeline: LivePipeline, *, paused: PausedParts, outbound: OutboundRouter, events: Events
    ) -> None:
        self._pipeline = pipeline
        self._paused = paused
        self._outbound = outbound
        self._events = events

    def start(self) -> None:
        """Pause the parts that were paused when the daemon ended."""
        for part in self._paused.names:
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
        before = {"paused": self._paused.names}
        if self._paused.set(part, paused=paused):
            self._switch(part, paused=paused)
            self._events.states_changed()
        after = {"paused": self._paused.names}
        return after | {"before": before, "after": after}

    def _switch(self, part: str, *, paused: bool) -> None:
        pipeline = self._pipeline
        if part == "training":
            pipeline.scheduler.paused = paused
            pipeline.worker.wake()
        else:
            self._outbound.silent = paused
