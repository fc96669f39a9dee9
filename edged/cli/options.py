"""Arguments and options that several commands have, and what `--json` prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from edged.domain.messages.encoding import json_ready

ConfigPath = Annotated[Path, Argument(metavar="CONFIG", help="configuration file (YAML)")]
Stream = Annotated[
    str | None,
    Option("--stream", metavar="NAME", help="name of the stream, if there are several"),
]
AsJson = Annotated[bool, Option("--json", help="one JSON object on stdout")]


def print_json(values: Any) -> None:
    """Print a JSON object on stdout, in one line."""
    sys.stdout.write(json.dumps(json_ready(values), separators=(",", ":"), default=str) + "\n")
