"""`--json`, for every command that reports."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from edged.strictjson import json_ready

AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]


def print_json(values: Any) -> None:
    """One JSON object on stdout, in one line."""
    sys.stdout.write(json.dumps(json_ready(values), separators=(",", ":"), default=str) + "\n")
