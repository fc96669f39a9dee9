"""Serving: samples -> predictions, labels -> live quality, the swap; and the thread that does it."""

from edged.device.serving.predictor import Server
from edged.device.serving.worker import ServingLoop

__all__ = ["Server", "ServingLoop"]
