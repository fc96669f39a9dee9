"""Between the daemon's threads and the event loop: a command from here to there, and calls back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


@dataclass(eq=False)
class LocalCommand:
    """Looks to `Control` like a delivery of the broker; `answered` gets its answers, on any thread.

    At QoS 0 and without a packet id: there is nothing to acknowledge, and it does not come again.
    """

    topic: str
    payload: bytes
    answered: Callable[[bytes], None]
    mid: int = 0
    qos: int = 0
    dup: bool = False
    retain: bool = False
    epoch: int = 0
    response_topic: str | None = None
    correlation: bytes | None = None


def soon(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> None:
    """Have the loop call `act`, from any thread; a loop that has ended, at whatever moment, calls nothing."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *arguments)
