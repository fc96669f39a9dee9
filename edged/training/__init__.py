"""The trainer's half of learning: what happens in its process between an order and a candidate."""

from edged.training.taking_part import TakingPart, taking_part
from edged.training.trainee import InterruptedRunError, RunRequest, Trainee

__all__ = ["InterruptedRunError", "RunRequest", "TakingPart", "Trainee", "taking_part"]
