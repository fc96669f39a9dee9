"""The option `--stream`: which of several streams a command is about."""

from __future__ import annotations

from typing import Annotated

from typer import Option

Stream = Annotated[
    str | None,
    Option("--stream", metavar="NAME", help="name of the stream, if there are several"),
]
