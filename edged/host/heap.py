"""The heap of this process: what garbage collection looks at, and pages that go back to the system."""

from __future__ import annotations

import ctypes
import gc

_THRESHOLDS = gc.get_threshold()
_NEVER = 1_000_000


def postpone_full_collections() -> None:
    """Until `freeze`, look at new objects only: nearly all that a start makes stays."""
    gc.set_threshold(*_THRESHOLDS[:2], _NEVER)


def freeze() -> None:
    """Exclude what is there from garbage collection, which works as usual from here on."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def trim() -> bool:
    """Give back what is free, after much was loaded at once; False where the C library cannot (musl)."""
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return False
    return bool(give_back(0))
