"""How a child process of the offline phase carries out the order on its stdin."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from edged.errors import EdgedError

if TYPE_CHECKING:
    from collections.abc import Callable


def obey(carry_out: Callable[[Any], None]) -> int:
    """Let `carry_out` work on the JSON on stdin; the exit code. An error is one line on stderr."""
    try:
        carry_out(json.load(sys.stdin))
    except EdgedError as problem:
        sys.stderr.write(problem.line() + "\n")
        return problem.exit_code
    return 0
