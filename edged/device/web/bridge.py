"""The way of rows from the event loop to serving and ingest, and back.

Rows that only want a prediction are answered one request after the other: on a thread of their own, or on
the event loop where that is quick. Recorded rows pass through ingest like messages of the broker, and are
answered when they are predicted and on disk. Each request has a future, which is resolved on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edged.device.ingest.ingestor import Ingestor
from edged.device.serving.worker import ServingWorker
from edged.device.web.api.tensors import Floats
from edged.device.web.http.bodies import HttpError
from edged.device.web.limits import ANSWER_SECONDS, MAX_REQUESTS
from edged.domain.commits.commit_group import Submission
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.observation import Seen
from edged.domain.stream.sample import Reading
from edged.errors import EdgedError

if TYPE_CHECKING:
    from concurrent.futures import Executor


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


@dataclass(eq=False)
class PendingRows:
    """Rows that become samples: their predictions and ids so far, and whether they are on disk."""

    future: asyncio.Future[None]
    rows: int
    first: int = -1
    given_up: bool = False
    stored: bool = False
    parts: list[tuple[int, Predictions, Sequence[str]]] = field(default_factory=list)

    def conclude(self) -> None:
        """Resolve the future once all rows are predicted and stored."""
        if self.stored and sum(len(ids) for _, _, ids in self.parts) == self.rows and not self.future.done():
            self.future.set_result(None)

    def answer(self) -> tuple[Predictions, list[str], list[int]]:
        """Return the predictions of all rows in order, the ids of the samples, and the version of each."""
        parts = [(made, ids) for _, made, ids in sorted(self.parts, key=lambda part: part[0])]
        made = [one for one, _ in parts]
        sure = [one.confidence for one in made if one.confidence is not None]
        joined = Predictions(
            made[-1].version,
            np.concatenate([one.offsets for one in made]),
            np.concatenate([one.answers for one in made]),
            np.concatenate([one.output for one in made]),
            np.concatenate(sure) if sure else None,
        )
        versions = [one.version for one in made for _ in range(len(one.offsets))]
        return joined, [name for _, ids in parts for name in ids], versions


class ServingBridge:
    """Passes requests from the event loop to other threads, at most `MAX_REQUESTS` at a time.

    `thread` makes predictions. Call `start` on the loop first.
    """

    def __init__(self, serving: ServingWorker, ingestor: Ingestor, thread: Executor) -> None:
        self._serving = serving
        self._ingestor = ingestor
        self._thread = thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._recorded: dict[int, PendingRows] = {}  # by the offset of each row
        self.waiting = 0
        """Number of requests without an answer."""

    def start(self) -> None:
        """Accept answers from other threads."""
        self._loop = asyncio.get_running_loop()

    # ---- on the event loop -------------------------------------------------------------------

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

    async def record(self, readings: list[Reading]) -> PendingRows:
        """Make samples of readings; return when they are predicted and on disk.

        Raises HttpError: 503 for too many requests or after the timeout: the samples might still be stored.
        Raises EdgedError when ingest rejects them.
        """
        with self._counted():
            recorded = PendingRows(asyncio.get_running_loop().create_future(), len(readings))

            def placed(first: int) -> None:
                recorded.first = first
                for offset in range(first, first + recorded.rows):
                    self._recorded[offset] = recorded
                if recorded.given_up:  # before or meanwhile: `finally` below has not seen all of them
                    self._forget(recorded)

            def stored() -> None:
                recorded.stored = True
                recorded.conclude()

            try:
                self._submit(readings, recorded.future, lambda _: stored(), placed)
                await answer_within(recorded.future)
            finally:
                recorded.given_up = True
                if recorded.first >= 0:
                    self._forget(recorded)
            return recorded

    async def store(self, found: list[Seen]) -> int:
        """Have ingest store what records say; return how many labels among them have no sample.

        Raises HttpError: 503 for too many requests or after the timeout: all of it might still be stored.
        Raises EdgedError when ingest rejects it.
        """
        with self._counted():
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            def stored(lost: int) -> None:
                if not future.done():
                    future.set_result(lost)

            self._submit(found, future, stored)
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

    def _submit(
        self,
        found: Sequence[Any],
        future: asyncio.Future[Any],
        stored: Callable[[int], None],
        placed: Callable[[int], None] | None = None,
    ) -> None:
        """Hand records to ingest; `stored` is called on the event loop, a refusal fails the future."""

        def failed(problem: EdgedError) -> None:
            if not future.done():
                future.set_exception(problem)

        on_loop, on_failure = (
            (lambda lost: self._later(stored, lost)),
            (lambda error: self._later(failed, error)),
        )
        self._ingestor.submit(Submission(list(found), time.monotonic(), placed, on_loop, on_failure))

    def _forget(self, recorded: PendingRows) -> None:
        for offset in range(recorded.first, recorded.first + recorded.rows):
            self._recorded.pop(offset, None)

    # ---- on other threads --------------------------------------------------------------------

    def answered(self, made: Predictions, ids: Sequence[str]) -> None:
        """Collect the predictions of recorded samples; on the thread that answers."""
        if not self._recorded:
            return
        found: dict[int, tuple[PendingRows, list[int]]] = {}
        for at, offset in enumerate(made.offsets.tolist()):
            recorded = self._recorded.get(offset)
            if recorded is not None:
                found.setdefault(id(recorded), (recorded, []))[1].append(at)
        for recorded, places in found.values():
            rows = slice(places[0], places[-1] + 1)
            part = _rows(made, rows)
            self._later(self._part, recorded, int(part.offsets[0]), part, ids[rows])

    def _part(self, recorded: PendingRows, place: int, made: Predictions, ids: Sequence[str]) -> None:
        recorded.parts.append((place, made, ids))
        recorded.conclude()

    def _later(self, act: Callable[..., object], *arguments: Any) -> None:
        if self._loop is not None:
            soon(self._loop, act, *arguments)


def _rows(made: Predictions, rows: slice) -> Predictions:
    sure = None if made.confidence is None else made.confidence[rows]
    return Predictions(made.version, made.offsets[rows], made.answers[rows], made.output[rows], sure)
