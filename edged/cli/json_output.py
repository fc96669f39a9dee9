"""The option `--json`, and what it prints."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from typer import Option

from edged.domain.messages.encoding import json_ready

AsJson = Annotated[bool, Option("--json", help="one JSON object on stdout")]


def print_json(values: Any) -> None:
    """Print a JSON object on stdout, in one line."""
    sys.stdout.write(json.dumps(json_ready(values), separators=(",", ":"), default=str) + "\n")
