"""The commands `pause` and `resume`: parts of the device stay paused across restarts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edged.errors import RefusedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.commands.inbox import CommandInbox
    from edged.device.events import Events
    from edged.device.ingest import Ingestor
    from edged.device.live_pipeline import LivePipeline
    from edged.device.outbound.publisher import OutboundRouter
    from edged.device.settings import PausedParts
    from edged.domain.commands.rules import Answer, Request
    from edged.mqtt.client.side_connection import SideConnection

FLUSH_SECONDS = 10.0  # at most, to commit the messages of a stream before they change connections

log = get_logger("edged.control")


class PauseCommands:
    """`pause` and `resume` for ingest, training and serving.

    While `ingest` is paused, the broker keeps the messages; while `training` is paused, only commands start
    runs, and a run that was cut off waits; while `serving` is paused, no predictions are published.

    Messages that are not acknowledged fill the main connection while ingest is paused, and others would wait
    behind them. Until ingest resumes, `connection` delivers to `receiver`: the inbox gets commands over it,
    or one stream of several its own messages.
    """

    def __init__(
        self,
        pipeline: LivePipeline,
        *,
        paused: PausedParts,
        outbound: OutboundRouter,
        connection: SideConnection,
        receiver: CommandInbox | Ingestor,
        events: Events,
    ) -> None:
        self._pipeline = pipeline
        self._paused = paused
        self._outbound = outbound
        self._connection = connection
        self._receiver = receiver
        self._events = events

    def start(self) -> None:
        """Pause the parts that were paused when the daemon ended."""
        for part in self._paused.names:
            self._switch(part, paused=True)

    def stop(self) -> None:
        """Close the connection for commands. Safe to call twice."""
        self._connection.close()

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
        elif part == "serving":
            self._outbound.silent = paused
        elif paused:
            self._connection.open(self._receiver.receive)
            self._flush_ingest()
            pipeline.ingestor.pause()
        else:
            pipeline.ingestor.resume()
            self._flush_ingest()
            self._connection.close(self._receiver.receive)

    def _flush_ingest(self) -> None:
        """Commit and acknowledge what came over the connection that a stream's own messages leave."""
        ingestor, until = self._pipeline.ingestor, time.monotonic() + FLUSH_SECONDS
        if self._receiver is not ingestor:
            return
        while ingestor.flush() and ingestor.waiting and time.monotonic() < until:
            log.debug("ingest_settles", waiting=ingestor.waiting)
