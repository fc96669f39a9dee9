"""HTTP errors: a status and one line, in the form of the Open Inference Protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from edged.errors import EdgedError

JSON = "application/json"


class HttpError(EdgedError):
    """An HTTP error with its status; `kind` is a stable word for counters."""

    def __init__(
        self, status: int, what: str, *, kind: str, remedy: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.kind = kind
        self.headers = headers
        super().__init__(what, remedy=remedy)


def refusal(problem: HttpError) -> Response:
    """Return the response for an error."""
    body = json.dumps({"error": problem.line()}).encode()
    return Response(body, problem.status, problem.headers, JSON)


def as_json(values: object, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    return Response(json.dumps(values, separators=(",", ":"), default=float).encode(), status, None, JSON)
