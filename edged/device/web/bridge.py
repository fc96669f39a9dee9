"""The way of rows from the event loop to serving and ingest, and back.

Rows are predicted one request after the other: on a thread of their own, or on the event loop where that is
quick. Samples and labels pass through ingest like messages of the broker, and are answered when they are on
disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from edged.device.ingest.ingestor import Ingestor
from edged.device.serving.worker import ServingWorker
from edged.device.web.api.tensors import Floats
from edged.device.web.http.bodies import ANSWER_SECONDS, MAX_REQUESTS, HttpError
from edged.domain.commits.commit_group import Submission
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.sample import Seen
from edged.errors import EdgedError

T = TypeVar("T")


def soon(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> None:
    """Have the loop call `act`, from any thread; a loop that has ended calls nothing."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *arguments)


async def answer_within(future: Awaitable[T]) -> T:
    """Wait for the result of a future; raise HttpError 503 after `ANSWER_SECONDS`."""
    try:
        return await asyncio.wait_for(future, ANSWER_SECONDS)
    except (TimeoutError, asyncio.TimeoutError):
        problem = f"no answer within {ANSWER_SECONDS:g} s"
        raise HttpError(503, problem, kind="timeout", remedy="try again") from None


class ServingBridge:
    """Passes requests from the event loop to other threads, at most `MAX_REQUESTS` at a time.

    `thread` makes predictions.
    """

    def __init__(self, serving: ServingWorker, ingestor: Ingestor, thread: Executor) -> None:
        self._serving = serving
        self._ingestor = ingestor
        self._thread = thread
        self.waiting = 0
        """Number of requests without an answer."""

    async def predict(self, x: Floats, version: int | None) -> Predictions:
        """Predict rows `(n, d)` with the current model, or with another loaded version.

        Raises HttpError: 503 for too many requests or after the timeout. Raises RefusedError when the version
        is not loaded, ModelError when no model has an answer.
        """
        loop = asyncio.get_running_loop()
        with self._counted():
            if self._serving.is_quick(len(x)):
                return self._serving.ask(x, version)
            return await answer_within(loop.run_in_executor(self._thread, self._serving.ask, x, version))

    async def store(self, found: list[Seen]) -> int:
        """Have ingest store what records say; return how many labels among them have no sample.

        Raises HttpError: 503 for too many requests or after the timeout: all of it might still be stored.
        Raises EdgedError when ingest rejects it.
        """
        with self._counted():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[int] = loop.create_future()

            def stored(lost: int) -> None:
                if not future.done():
                    future.set_result(lost)

            def failed(problem: EdgedError) -> None:
                if not future.done():
                    future.set_exception(problem)

            on_disk, refused = partial(soon, loop, stored), partial(soon, loop, failed)
            self._ingestor.submit(Submission(list(found), time.monotonic(), on_disk, refused))
            return await answer_within(future)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request that is in progress; raise HttpError 503 where there are too many."""
        if self.waiting >= MAX_REQUESTS:
            problem, later = f"{MAX_REQUESTS} requests are under way", {"retry-after": "1"}
            raise HttpError(503, problem, kind="overloaded", remedy="try again", headers=later)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
