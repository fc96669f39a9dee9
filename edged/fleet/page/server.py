"""The page's files, with the broker's address in them, and a server of them on this machine."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import Template
from urllib.parse import urlsplit

from edged.charts.html import DESIGN, design
from edged.errors import ConfigError, StorageError
from edged.fleet.local_server import Answer, LocalServer

FOLDER = Path(__file__).with_name("static")
START = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PLACE = re.compile(r"wss?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?(/[A-Za-z0-9._~/-]*)?")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class PageSettings:
    """Settings that the page receives; ConfigError if the address or the root is invalid."""

    broker: str = ""  # `ws://` or `wss://` address; empty for the place that the page itself came from
    root: str = "edged"  # first level of all topics

    def __post_init__(self) -> None:
        if self.broker and _PLACE.fullmatch(self.broker) is None:
            raise ConfigError(
                "this is no address for websockets",
                where=self.broker.partition("@")[2] or self.broker,
                remedy="write ws://host:port/path, or wss://; user and password are asked in the page",
            )
        if not self.root or any(sign in self.root for sign in "+#\0"):
            raise ConfigError("topics cannot start with this", where=self.root or "--root")

    @property
    def policy(self) -> str:
        """The content security policy: own files, and one connection."""
        place = urlsplit(self.broker)
        connect = f"{place.scheme}://{place.netloc}" if self.broker else "'self'"
        return (
            f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src {connect};"
            " base-uri 'none'; form-action 'none'"
        )


def page_files(settings: PageSettings) -> dict[str, bytes]:
    """Contents of all files by their names."""
    files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}
    files[DESIGN] = design().encode()
    values = {"policy": settings.policy, "broker": settings.broker, "root": settings.root}
    page = Template(files[START].decode()).substitute(
        {name: html.escape(value) for name, value in values.items()}
    )
    return files | {START: page.encode()}


def write_files(settings: PageSettings, folder: Path) -> list[str]:
    """Write the page into a folder, for a broker or a web server that serves it; return the file names.

    Raises StorageError when they cannot be written.
    """
    files = page_files(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as problem:
        raise StorageError(f"cannot be written: {problem.strerror}", where=str(folder)) from problem
    return list(files)


def page_server(listen: tuple[str, int], settings: PageSettings) -> LocalServer:
    """A server of the page at an address and port; UnavailableError when the address is taken."""
    files = page_files(settings)

    def answer(path: str) -> Answer:
        name = path.removeprefix("/") or START
        if name not in files:
            return 404, TYPES[".txt"], b"path not found\n"
        return 200, TYPES[PurePosixPath(name).suffix], files[name]

    policy = f"{settings.policy}; frame-ancestors 'none'"
    return LocalServer(listen, answer, {**_HEADERS, "Content-Security-Policy": policy})
