"""The way of rows from the event loop to the serving and ingest threads, and back.

Requests that arrive in one turn of the event loop, or while the serving thread works, are answered by one run
of the model. Recorded rows pass through ingest like messages of the broker, and are answered when they are
predicted and on disk. Each request has a future, which is resolved on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.device.web.http.errors import HttpError
from edged.domain.commits.commit_group import Submission
from edged.domain.judging.inference_requests import InferenceRequest, InferenceRequests
from edged.domain.judging.predictions import Predictions
from edged.errors import EdgedError, RefusedError

if TYPE_CHECKING:
    from edged.device.ingest import Ingestor
    from edged.device.serving import ServingWorker
    from edged.device.web.api.tensors import Floats
    from edged.domain.stream.observation import Seen
    from edged.domain.stream.sample import Reading

LOOK_SECONDS = 1.0


def soon(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> None:
    """Have the loop call `act`, from any thread; a loop that has ended calls nothing."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *arguments)


@dataclass(eq=False)
class PendingRows:
    """Rows that become samples: their predictions and ids so far, and whether they are on disk."""

    future: asyncio.Future[PendingRows]
    rows: int
    asked: float
    first: int = -1
    given_up: bool = False
    stored: bool = False
    problem: EdgedError | None = None
    parts: list[tuple[int, Predictions, Sequence[str]]] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether all rows are predicted and stored."""
        return self.stored and sum(len(ids) for _, _, ids in self.parts) == self.rows

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
    """Passes requests from the event loop to other threads, at most `most` at a time, for `timeout` seconds.

    Call `start` on the loop first.
    """

    def __init__(self, serving: ServingWorker, ingestor: Ingestor, *, most: int, timeout: float) -> None:
        self._requests = InferenceRequests()
        self._call = serving.accept_requests(self._requests, self._asked)
        self._ingestor = ingestor
        self._most = most
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # of the event loop
        self._under_way: dict[asyncio.Future[Any], float] = {}
        self._recorded: dict[int, PendingRows] = {}  # by the offset of each row
        self._looking = False
        self._gathered: list[InferenceRequest] = []

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return len(self._under_way)

    def start(self) -> None:
        """Accept answers from other threads."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    # ---- on the event loop -------------------------------------------------------------------

    async def predict(self, x: Floats, version: int | None) -> Predictions:
        """Predict rows `(n, d)` with the current model, or with another loaded version.

        Raises HttpError: 503 for too many requests or after the timeout, 404 when the version is not loaded,
        500 when no model has an answer.
        """
        future = self._enter()
        question = InferenceRequest(x, self._under_way[future], version, future)
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._gathered.append(question)
        await self._leave(future)
        if question.made is None:
            raise _unanswered(question.problem)
        return _rows(question.made, question.rows)

    async def record(self, readings: list[Reading]) -> PendingRows:
        """Make samples of readings; return when they are predicted and on disk.

        Raises HttpError: 503 for too many requests or after the timeout: the samples might still be stored.
        Raises EdgedError when ingest rejects them.
        """
        future = self._enter()
        recorded = PendingRows(future, len(readings), self._under_way[future])

        def placed(first: int) -> None:
            recorded.first = first
            for offset in range(first, first + recorded.rows):
                self._recorded[offset] = recorded
            if recorded.given_up:  # before or meanwhile: nobody else takes out what came after that
                self._forget(recorded)

        def stored(_: int) -> None:
            self._later(self._stored, recorded)

        def refused(problem: EdgedError) -> None:
            self._later(self._refused, recorded, problem)

        try:
            self._ingestor.submit(Submission(readings, recorded.asked, placed, stored, refused))
        except BaseException:
            self._under_way.pop(future, None)
            raise
        try:
            await self._leave(future)
        finally:
            recorded.given_up = True
            if recorded.first >= 0:
                self._forget(recorded)
        if recorded.problem is not None:
            raise recorded.problem
        return recorded

    async def store(self, found: list[Seen]) -> int:
        """Have ingest store what records say; return how many labels among them have no sample.

        Raises HttpError: 503 for too many requests or after the timeout: all of it might still be stored.
        Raises EdgedError when ingest rejects it.
        """
        future = self._enter()

        def stored(lost: int) -> None:
            self._later(_set, future, lost)

        def refused(problem: EdgedError) -> None:
            self._later(_set, future, problem)

        try:
            self._ingestor.submit(Submission(found, self._under_way[future], None, stored, refused))
        except BaseException:
            self._under_way.pop(future, None)
            raise
        await self._leave(future)
        outcome: int | EdgedError = future.result()
        if isinstance(outcome, EdgedError):
            raise outcome
        return outcome

    def _forget(self, recorded: PendingRows) -> None:
        for offset in range(recorded.first, recorded.first + recorded.rows):
            self._recorded.pop(offset, None)

    def _enter(self) -> asyncio.Future[Any]:
        if len(self._under_way) >= self._most:
            problem, later = f"{self._most} requests are under way", {"retry-after": "1"}
            raise HttpError(503, problem, kind="overloaded", remedy="try again", headers=later)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._under_way[future] = time.monotonic()
        if not self._looking:
            self._looking = True
            loop.call_later(LOOK_SECONDS, self._look)
        return future

    async def _leave(self, future: asyncio.Future[Any]) -> None:
        try:
            await future
        finally:
            self._under_way.pop(future, None)

    def _look(self) -> None:
        """Fail requests that wait too long; one timer for all, as one for each costs more than an answer."""
        before = time.monotonic() - self._timeout
        for future, asked in list(self._under_way.items()):
            if asked <= before and not future.done():
                problem = f"no answer within {self._timeout:g} s"
                future.set_exception(HttpError(503, problem, kind="timeout", remedy="try again"))
        self._looking = bool(self._under_way)
        if self._looking:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _hand_over(self) -> None:
        """Pass the requests of one turn of the loop to serving together."""
        gathered, self._gathered = self._gathered, []
        self._requests.add(gathered)
        self._call()

    def _resolve(self, asked: list[InferenceRequest]) -> None:
        for question in asked:
            if not question.asker.done():
                question.asker.set_result(None)

    def _part(self, recorded: PendingRows, place: int, made: Predictions, ids: Sequence[str]) -> None:
        recorded.parts.append((place, made, ids))
        self._conclude(recorded)

    def _stored(self, recorded: PendingRows) -> None:
        recorded.stored = True
        self._conclude(recorded)

    def _refused(self, recorded: PendingRows, problem: EdgedError) -> None:
        recorded.problem = problem
        self._conclude(recorded)

    def _conclude(self, recorded: PendingRows) -> None:
        if (recorded.whole or recorded.problem is not None) and not recorded.future.done():
            recorded.future.set_result(recorded)

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

    def _asked(self, asked: list[InferenceRequest]) -> None:
        if threading.get_ident() == self._thread:  # it was quick enough to be made at once
            self._resolve(asked)
        else:
            self._later(self._resolve, asked)

    def _later(self, act: Any, *arguments: Any) -> None:
        if self._loop is not None:
            soon(self._loop, act, *arguments)


def _set(future: asyncio.Future[Any], outcome: object) -> None:
    if not future.done():
        future.set_result(outcome)


def _rows(made: Predictions, rows: slice) -> Predictions:
    sure = None if made.confidence is None else made.confidence[rows]
    return Predictions(made.version, made.offsets[rows], made.answers[rows], made.output[rows], sure)


def _unanswered(problem: EdgedError | None) -> HttpError:
    line = "no answer" if problem is None else problem.line()
    if isinstance(problem, RefusedError):
        return HttpError(404, line, kind="version")
    return HttpError(500, line, kind="model")
