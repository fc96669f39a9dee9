"""Commands that only read: `ping`, `status` and `capabilities`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edged import __version__

if TYPE_CHECKING:
    from edged.device.live_pipeline import LivePipeline
    from edged.device.reporting.status import StatusCollector
    from edged.domain.commands.rules import Answer, Request
    from edged.mqtt.client.session import Session


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
            "engine": self._pipeline.scheduler.engine or config.training.engine,
            "task": schema.task,
            "features": list(schema.names) if schema.names else schema.measured,
            "classes": list(schema.known_classes),
            "codec": config.stream.codec,
            "root": config.topic_root,
            "commands": commands,
        }
