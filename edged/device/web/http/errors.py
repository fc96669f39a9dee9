"""What is refused over HTTP: a status and one line, as the Open Inference Protocol wants it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from edged.errors import EdgedError

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON = "application/json"


class HttpError(EdgedError):
    """A request that is not answered as it wanted. `kind` is a stable word for counters."""

    def __init__(
        self, status: int, what: str, *, kind: str, remedy: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.kind = kind
        self.headers = headers
        super().__init__(what, remedy=remedy)


def refusal(problem: HttpError) -> Response:
    """The answer that tells of a problem."""
    body = json.dumps({"error": problem.line()}).encode()
    return Response(body, problem.status, problem.headers, JSON)


def as_json(values: object, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(json.dumps(values, separators=(",", ":"), default=float).encode(), status, None, JSON)
