"""Learning rate by step, from the position in the run, which is saved with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from edged.domain.protocols import LearningRate
from edged.errors import CorruptError

POSITION_FILE = "engine.json"


def rate_at(rate: LearningRate, step: int) -> float:
    """Learning rate of the update number `step`, counted from 0.

    The warm-up reaches `initial` with its last step and never wastes a step on a rate of 0.

    >>> from edged.domain.protocols import LearningRate
    >>> [rate_at(LearningRate(1.0, warmup=2, total=6), k) for k in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < rate.warmup:
        return rate.initial * ((step + 1) / rate.warmup)
    if rate.total == 0:
        return rate.initial
    return rate.initial * (max(0, rate.total - step) / max(1, rate.total - rate.warmup))


@dataclass
class Schedule:
    """A learning rate and how many updates have been made under it.

    onnxruntime's own `LinearLRScheduler` is not used: in 1.19.2 its binding exchanges warm-up and total
    steps, it counts the optimizer's lifetime steps instead of the run's, and it cannot stay constant.
    """

    rate: LearningRate
    step: int = 0

    def advance(self) -> float:
        """Learning rate of the next update, which is then counted."""
        value = rate_at(self.rate, self.step)
        self.step += 1
        return value

    def save(self, directory: Path, **more: int) -> None:
        """Write the position into `directory`, with further numbers."""
        position = {"rate": asdict(self.rate), "step": self.step, **more}
        (directory / POSITION_FILE).write_text(json.dumps(position), encoding="utf-8")

    @classmethod
    def restore(cls, directory: Path) -> tuple[Schedule, int]:
        """Read back what `save` wrote: the position, and the number `updates`, 0 where there is none.

        Raises CorruptError when the file is missing or damaged.
        """
        path = directory / POSITION_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(LearningRate(**data["rate"]), int(data["step"])), int(data.get("updates", 0))
        except (OSError, ValueError, TypeError, KeyError) as problem:
            raise CorruptError("is missing or damaged", where=str(path)) from problem
