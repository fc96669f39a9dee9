"""Serving: samples -> predictions, labels -> live quality, the swap; and the thread that does it."""

from edged.loop.serve.server import Server
from edged.loop.serve.thread import ServingLoop

__all__ = ["Server", "ServingLoop"]
