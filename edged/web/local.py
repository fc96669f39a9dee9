"""A command that comes by another way than the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
