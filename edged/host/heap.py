"""The C heap of this process: pages that are free in it go back to the system."""

from __future__ import annotations

import ctypes


def trim() -> bool:
    """Give back what is free, after much was loaded at once; False where the C library cannot (musl)."""
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return False
    return bool(give_back(0))
