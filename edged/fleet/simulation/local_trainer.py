"""A trainer in the same process: a simulation has more devices than a machine has room for trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from edged.device.learning.trainer_client import NothingNewError, TrainerClient
from edged.domain.training.message import Message
from edged.errors import NoDataError
from edged.fleet.simulation.shared import Unthrottled

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.training.trainer_messages import TrainingOrder
    from edged.trainer.trainer import Trainer

R = TypeVar("R", bound=Message)


def _ignore(message: Message) -> None:
    """A report that nobody asked for."""


class ReportingControl(Unthrottled):
    """A `RunControl` that never stops a run and hands its reports to whoever waits for it."""

    def __init__(self) -> None:
        self.on_message: Callable[[Message], None] = _ignore

    def checkpoint_requested(self) -> bool:
        """Ask for no checkpoint but those that a run writes anyway."""
        return False

    def report(self, message: Message) -> None:
        """Hand a report on."""
        self.on_message(message)


class LocalTrainer(TrainerClient):
    """Executes orders on the caller's thread, one at a time; a run cannot be cancelled.

    `trainer` reports to `control`.
    """

    def __init__(self, config: Config, control: ReportingControl, trainer: Trainer) -> None:
        super().__init__(config, durable=False)
        self._control, self._trainer = control, trainer

    def run(self, order: TrainingOrder[R], on_message: Callable[[Message], None] = _ignore) -> R:
        """Execute an order and return its result; see `TrainerClient.run`."""
        with self.turn():
            self._control.on_message = on_message
            try:
                return cast("R", self._trainer.execute(order))
            except NoDataError as problem:
                raise NothingNewError(problem.line(), self._trainer.learner.state.consumed) from None

    def close(self) -> None:
        """Close the trainer's log."""
        self._trainer.close()
        super().close()
