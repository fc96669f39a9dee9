"""Endpoints below `/api/labels`: labels to check, the map of the samples, and one sample of it."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from edged.device.commands.labelling import SUSPECTS_LISTED, sample, suspect
from edged.device.learning.label_reviews import LabelReviews
from edged.device.web.http.bodies import HttpError, as_json
from edged.domain.json_fields import JsonObject

MOST = 300
LARGEST = 2**62


class LabelEndpoints:
    """What the newest review of labels says; all of it is read on another thread."""

    def __init__(self, reviews: LabelReviews) -> None:
        self._reviews = reviews

    async def suspects(self, request: Request) -> Response:
        """Return what the command `labels.suspects` answers; `?limit=50&key=pump` are its fields."""
        limit = _number(request.query_params.get("limit", str(SUSPECTS_LISTED)), "limit", MOST)
        key = request.query_params.get("key")
        ts, labels, found = await asyncio.to_thread(self._reviews.suspects, limit, key)
        suspects = [suspect(self._reviews.schema, one) for one in found]
        return as_json({"reviewed": ts, "labels": labels, "suspects": suspects})

    async def points(self, _: Request) -> Response:
        """Return the map, as columns; `label` and `answer` are places in `classes`."""
        return as_json(await asyncio.to_thread(self._map))

    async def sample(self, request: Request) -> Response:
        """Return one sample of the map; 404 when it is not here any more."""
        offset = _number(request.path_params["offset"], "offset", LARGEST)
        found = await asyncio.to_thread(self._reviews.sample, offset)
        if found is None:
            raise HttpError(404, f"no sample has the offset {offset}", kind="path")
        schema = self._reviews.schema
        names = list(schema.names) or [str(at) for at in range(schema.measured)]
        return as_json({**sample(schema, *found), "features": names})

    def _map(self) -> JsonObject:
        ts, points = self._reviews.points()
        schema = self._reviews.schema
        return {
            "reviewed": ts, "classes": list(schema.classes), "known": list(schema.known_classes),
            "points": points,
        }  # fmt: skip


def _number(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= most):
        raise HttpError(400, f"{name}: {text[:20]!r} is no number from 1 to {most}", kind="request")
    return int(text)
