"""Static files of the page: read once, served by name with an ETag for browser caches."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from edged.device.web.http.bodies import respond
from edged.device.web.http.errors import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

FOLDER = Path(__file__).parents[1] / "page" / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Assets:
    """Endpoint `/static/<name>`: only the files in `FOLDER` of these types, whatever the name."""

    def __init__(self) -> None:
        self._files = {
            path.name: (path.read_bytes(), TYPES[path.suffix])
            for path in FOLDER.iterdir()
            if path.suffix in TYPES
        }

    async def file(self, request: Request) -> Response:
        """Return the file with this name."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            raise HttpError(404, "path not found", kind="path")
        body, media = found
        headers: dict[bytes, bytes] = request.scope["edged.headers"]
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        more = {"etag": tag, "cache-control": "no-cache"}
        if headers.get(b"if-none-match") == tag.encode():
            return Response(status_code=304, headers=more)
        return respond(headers, body, media, more)
