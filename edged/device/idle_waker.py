"""Lets the threads of an idle stream sleep, and wakes them when there may be something to do."""

from __future__ import annotations

from zlib import crc32

from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.publisher import OutboundRouter

AFTER = 10  # looks for which a stream counts as busy after it has last done something
BUSY_LOOKS = 5  # between two turns of learning while it is busy; not all streams in the same second
EVICT_LOOKS = 60  # between two turns of ingest where samples get too old


class IdleWaker:
    """Looks after one stream of several on a thread that all of them share, instead of timeouts of its own.

    `pipeline` and `outbound`, which share threads with others, do not wake up by themselves: call `look` once
    a second.
    """

    def __init__(self, pipeline: LivePipeline, outbound: OutboundRouter) -> None:
        self._pipeline, self._outbound = pipeline, outbound
        self._seen: tuple[int, ...] = ()
        self._busy = AFTER
        self._looks, self._phase = 0, crc32(pipeline.config.name.encode()) % BUSY_LOOKS

    def look(self) -> None:
        """Wake the threads that may have something to do; none of an idle stream."""
        pipeline, self._looks = self._pipeline, self._looks + 1
        self._outbound.look()
        if pipeline.config.storage.max_age is not None and self._looks % EVICT_LOOKS == 0:
            pipeline.ingestor.wake()
        samples = pipeline.samples
        seen = (
            pipeline.ingestor.received,
            pipeline.predictor.predictions,
            samples.next_offset(),
            samples.last_seq(),
        )
        self._busy = AFTER if seen != self._seen else self._busy - 1
        self._seen = seen
        due = self._busy > 0 and self._looks % BUSY_LOOKS == self._phase
        if due or pipeline.worker.waits or pipeline.rollout.problem is not None:
            pipeline.worker.look()
        if pipeline.teacher.behind or pipeline.predictor.on_probation:
            pipeline.serving.look()
