"""The trainer's half of learning: what happens in its process between an order and a candidate."""

from edged.trainer.fleet_update import TakingPart, taking_part
from edged.trainer.run import InterruptedRunError, RunRequest, Trainee

__all__ = ["InterruptedRunError", "RunRequest", "TakingPart", "Trainee", "taking_part"]
