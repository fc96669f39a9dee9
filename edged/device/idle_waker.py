"""Lets the threads of an idle stream sleep, and wakes them when there may be something to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.errors import EdgedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.live_pipeline import LivePipeline
    from edged.device.outbound.publisher import OutboundRouter

AFTER = 10  # looks for which a stream counts as busy after it has last done something
EVICT_LOOKS = 60  # between two turns of ingest where samples get too old

log = get_logger("edged.device")


class IdleWaker:
    """Looks after one stream of several on a thread that all of them share, instead of timeouts of its own.

    `pipeline` and `outbound` wake up by themselves no more: call `look` once a second.
    """

    def __init__(self, pipeline: LivePipeline, outbound: OutboundRouter) -> None:
        self._pipeline, self._outbound = pipeline, outbound
        self._seen: tuple[int, ...] = ()
        self._busy = AFTER
        self._looks = 0
        pipeline.ingestor.idle = float("inf")
        pipeline.serving.idle = pipeline.worker.idle = None
        outbound.rest()

    def _shrink(self) -> None:
        """Give back what an idle stream keeps in memory for its next sample."""
        pipeline = self._pipeline
        try:
            for part in (pipeline.samples, pipeline.reader, pipeline.registry, self._outbound):
                part.shrink()
        except EdgedError as problem:
            log.warning("memory_kept", problem=problem.line())

    def look(self) -> None:
        """Wake the threads that may have something to do; none of an idle stream."""
        pipeline, self._looks = self._pipeline, self._looks + 1
        pipeline.ingestor.look()
        self._outbound.look()
        if pipeline.config.storage.max_age is not None and self._looks % EVICT_LOOKS == 0:
            pipeline.ingestor.wake()
        counters = pipeline.samples.counters()
        seen = (
            pipeline.ingestor.received,
            pipeline.predictor.predictions,
            counters.samples,
            counters.last_seq,
        )
        self._busy = AFTER if seen != self._seen else self._busy - 1
        self._seen = seen
        if self._busy == 0:
            self._shrink()
        if self._busy > 0 or pipeline.worker.waits or pipeline.rollout.problem is not None:
            pipeline.worker.look()
        if self._busy > 0 or pipeline.predictor.on_probation:
            pipeline.serving.look()
