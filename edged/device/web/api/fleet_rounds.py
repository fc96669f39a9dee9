"""Rounds for a program on this machine: with `fleet.flower`, on the Unix socket alone.

A request is a line of JSON and weights as safetensors; answers have the same form.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edged.device.fleet_member.local_rounds import LocalRounds
from edged.device.web.http.authentication import Access
from edged.device.web.http.bodies import HttpError, as_json, json_bytes, read_body
from edged.device.web.http.routes import UNIX, GuardedRoute
from edged.domain.federated.messages import LARGEST_MODEL, LONGEST_LINE, M, Quality, read_received
from edged.domain.federated.round_orders import FitRequest, TrialRequest
from edged.domain.training.weight_coding import Weights
from edged.errors import CorruptError, RefusedError, UnavailableError
from edged.mqtt import weight_encoding

R = TypeVar("R")

OCTETS = "application/octet-stream"
WAIT_SECONDS = 60.0  # longest wait for a training run in progress, before the device declines


class RoundEndpoints:
    """Endpoints `/api/fleet/train` and `/api/fleet/evaluate`; `task` is that of the stream."""

    def __init__(self, rounds: LocalRounds, task: str, wait: float = WAIT_SECONDS) -> None:
        self._rounds, self._task, self._wait = rounds, task, wait

    def routes(self, access: Access) -> list[Route]:
        """Return the routes."""
        endpoints = {"/api/fleet/train": self.train, "/api/fleet/evaluate": self.evaluate}
        return [
            Route(path, GuardedRoute("POST", endpoint, ("control",), access, json_only=False))
            for path, endpoint in endpoints.items()
        ]

    async def train(self, request: Request) -> Response:
        """Train from the weights of the request; without weights, return the bundle's initial ones."""
        settings, sent = await _parts(FitRequest, request)
        if not sent:
            about, trained = _described(0, None, self._task), await asyncio.to_thread(self._rounds.initial)
        else:
            made, trained = await self._result(self._rounds.train(settings, _weights(sent)))
            about = _described(made.samples, made.quality, self._task) | {"steps": made.steps}
        return Response(json_bytes(about) + b"\n" + trained, media_type=OCTETS)

    async def evaluate(self, request: Request) -> Response:
        """Judge the weights of the request, and offer them to the gate if it says so."""
        trial, sent = await _parts(TrialRequest, request)
        found = await self._result(self._rounds.evaluate(trial, _weights(sent)))
        about = _described(found.samples_judged, found.model, self._task)
        return as_json({**about, "taken": found.taken, "reason": found.reason})

    async def _result(self, future: Future[R]) -> R:
        """Return the result of a request; RefusedError if a training run keeps it from beginning."""
        waiting = asyncio.wrap_future(future)
        done, _ = await asyncio.wait([waiting], timeout=self._wait)
        if not done and future.cancel():
            raise RefusedError("a training run is in progress", where="fleet", remedy="try again later")
        await asyncio.wait([waiting])
        try:
            return waiting.result()
        except (UnavailableError, asyncio.CancelledError) as problem:  # cancelled where the daemon stops
            raise HttpError(503, str(problem) or "the daemon is stopping", kind="unavailable") from None


async def _parts(kind: type[M], request: Request) -> tuple[M, bytes]:
    if not request.scope.get(UNIX):
        raise HttpError(403, "rounds are requested over the Unix socket", kind="scope")
    body = await read_body(request.scope, request.receive, LARGEST_MODEL + LONGEST_LINE)
    line, _, weights = body.partition(b"\n")
    return read_received(kind, line, LONGEST_LINE, "request"), weights


def _weights(sent: bytes) -> Weights:
    try:
        return weight_encoding.from_safetensors(sent)
    except CorruptError as problem:
        raise HttpError(400, problem.what, kind="request") from None


def _described(samples: int, quality: Quality | None, task: str) -> dict[str, object]:
    """Return what an answer says of weights: loss and, by the task, accuracy or mean absolute error."""
    about: dict[str, object] = {"samples": samples}
    if quality is not None:
        about["loss"] = quality.loss
        about |= {"accuracy": quality.metric} if task == "classify" else {"error": -quality.metric}
    return about
