"""Commands about the device itself: what it is, and its log level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edged import __version__, logs
from edged.clock import Clock
from edged.device.live_pipeline import LivePipeline
from edged.domain.commands.rules import Answer, Request
from edged.mqtt.client.session import Session


def set_log_level(request: Request) -> Answer:
    """Set the log level until the next restart."""
    before = {"level": logs.level()}
    logs.configure(request["level"])
    after = {"level": request["level"]}
    return after | {"before": before, "after": after}


def pong(clock: Clock) -> Answer:
    """Return the time of the device and its version."""
    return {"pong": True, "ts": clock.now(), "version": __version__}


def capabilities(pipeline: LivePipeline, session: Session, names: Iterable[str]) -> Answer:
    """Describe the device, and its commands `names` with the schemas of their requests and answers."""
    from edged.domain.messages.sent import ANSWERS

    config, schema = pipeline.config, pipeline.schema
    return {
        "device": config.device.id,
        "version": __version__,
        "protocol": session.protocol,
        "engine": pipeline.scheduler.engine,
        "task": schema.task,
        "features": list(schema.names) if schema.names else schema.measured,
        "classes": list(schema.known_classes),
        "codec": config.stream.codec,
        "root": config.topic_root,
        "commands": described(names, ANSWERS),
    }


def described(names: Iterable[str], answers: Mapping[str, Any]) -> Answer:
    """Describe commands with the schemas of their requests, and of their answers where these are known."""
    from edged.domain.messages.requests import REQUESTS, whole

    return {
        name: {
            "description": REQUESTS.get(name, {}).get("description", ""),
            "request": whole(name),
            "answer": answers.get(name, {"type": "object"}),
        }
        for name in sorted(names)
    }
