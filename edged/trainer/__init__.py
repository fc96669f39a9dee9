"""The trainer's half of learning: what happens in its process between an order and a candidate."""

from edged.trainer.fleet_update import FleetUpdateTrainer, taking_part
from edged.trainer.run import InterruptedRunError, TrainingRun

__all__ = ["FleetUpdateTrainer", "InterruptedRunError", "TrainingRun", "taking_part"]
