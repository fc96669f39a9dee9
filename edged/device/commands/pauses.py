"""The commands `pause` and `resume`: parts of the device that rest, over restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.mqtt.client.command_connection import CommandConnection

if TYPE_CHECKING:
    from edged.device.commands.context import Parts

PAUSED = "paused"


class PauseCommands:
    """Which parts rest.

    While `ingest` does, nothing is taken from the broker, which keeps it; while `training` does, no run
    begins by itself; while `serving` does, no prediction is published.

    While ingest rests, its messages fill what may be unacknowledged on a connection: commands would wait
    behind them. They come over a connection of their own then.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._paused: set[str] = set(parts.registry.get_value(PAUSED) or ())
        config = parts.config
        self._line = CommandConnection(
            config.mqtt, parts.session, parts.topics.requests,
            client_id=f"{config.mqtt.client_id or f'edged-{config.device.id}'}-commands",
        )  # fmt: skip

    def begin(self) -> None:
        """At the start: what rested goes on resting."""
        for part in sorted(self._paused):
            self._switch(part, rests=True)

    def end(self) -> None:
        """At the end of the daemon."""
        self._line.close()

    @property
    def second_line(self) -> CommandConnection:
        """Over which commands come while ingest rests."""
        return self._line

    def paused(self) -> list[str]:
        """The parts that rest."""
        return sorted(self._paused)

    def pause(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let a part rest, training when none is named."""
        return self._set(request.get("what", "training"), rests=True)

    def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let it go on."""
        return self._set(request.get("what", "training"), rests=False)

    def _set(self, part: str, *, rests: bool) -> dict[str, Any]:
        after = self._paused | {part} if rests else self._paused - {part}
        if after != self._paused:
            self._parts.registry.set_value(PAUSED, sorted(after))
            self._paused = after
            self._switch(part, rests=rests)
            self._parts.publish_states()
        return {"paused": self.paused()}

    def _switch(self, part: str, *, rests: bool) -> None:
        parts = self._parts
        if part == "training":
            parts.learner.paused = rests or not parts.config.training.enabled
            parts.learning.wake()
        elif part == "serving":
            parts.publishing.silent = rests
        elif rests:
            self._line.open(parts.receive)
            parts.ingest.rest()
        else:
            parts.ingest.go_on()
            self._line.close(parts.receive)
