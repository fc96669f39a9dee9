"""Calls from the daemon's threads into the event loop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def soon(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> None:
    """Have the loop call `act`, from any thread; a loop that has ended calls nothing."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *arguments)
