"""Requests under way: they are bounded, and those that are given up leave nothing behind."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.web.bridge import ServingBridge
from edged.device.web.http.bodies import MAX_REQUESTS, HttpError
from edged.domain.stream.sample import Reading

if TYPE_CHECKING:
    from edged.domain.commits.commit_group import Submission


class Stages:
    """Serving and ingest, as far as they receive rows from here."""

    def __init__(self) -> None:
        self.submitted: list[Submission] = []

    def submit(self, submission: Submission) -> None:
        self.submitted.append(submission)


def test_requests_under_way_are_bounded() -> None:
    stages = Stages()
    bridge: Any = ServingBridge(stages, stages, ThreadPoolExecutor(1))  # type: ignore[arg-type]
    reading = Reading("k", [1.0])

    async def run() -> None:
        asked = [asyncio.ensure_future(bridge.store([reading])) for _ in range(MAX_REQUESTS)]
        await asyncio.sleep(0)
        assert len(stages.submitted) == MAX_REQUESTS
        with pytest.raises(HttpError, match="requests are under way") as caught:
            await bridge.store([reading])
        assert caught.value.status == 503
        given_up = asked.pop()
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        asked.append(asyncio.ensure_future(bridge.store([reading])))
        await asyncio.sleep(0)
        assert len(stages.submitted) == MAX_REQUESTS + 1
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(run())
    assert bridge.waiting == 0
