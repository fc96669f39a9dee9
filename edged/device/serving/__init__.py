"""Serving: samples -> predictions, labels -> live quality, the swap; and the thread that does it."""

from edged.device.serving.head_teacher import HeadTeacher
from edged.device.serving.predictor import Predictor
from edged.device.serving.worker import ServingWorker

__all__ = ["HeadTeacher", "Predictor", "ServingWorker"]
