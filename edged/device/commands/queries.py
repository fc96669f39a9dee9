"""Commands that only ask: `ping`, `status` and `capabilities`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edged.device.commands.context import Parts


class QueryCommands:
    """What the device says of itself when it is asked."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def ping(self, _: dict[str, Any]) -> dict[str, Any]:
        """It is there."""
        return {"pong": True, "ts": self._parts.clock.now(), "version": __version__}

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """What `edged status` prints."""
        return self._parts.selfreport.status()

    def capabilities(self, names: Iterable[str]) -> dict[str, Any]:
        """What the device is, and its commands `names` with the schemas of their requests and answers."""
        from edged.domain.messages.answers import ANSWERS
        from edged.domain.messages.requests import REQUESTS, whole

        config, schema = self._parts.config, self._parts.server.schema
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
            "protocol": self._parts.session.protocol,
            "engine": self._parts.learner.engine or config.training.engine,
            "task": schema.task,
            "features": list(schema.names) if schema.names else schema.width,
            "classes": list(schema.classes),
            "codec": config.stream.codec,
            "root": config.topic_root,
            "commands": commands,
        }
