"""A member's part in rounds on the learning thread; what came of it goes back to the member's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from edged.device.learning.trainer_slot import StoppedRunError
from edged.errors import EdgedError

if TYPE_CHECKING:
    import queue

R = TypeVar("R")


class RoundJobs:
    """Runs long work for a member, and leaves its result in the member's queue.

    `failed` gets what is to blame for an error, and the error; None where the work was stopped, or has a bug.
    """

    def __init__(
        self,
        member: queue.SimpleQueue[Callable[[], None] | None],
        failed: Callable[[str, EdgedError | None], None],
    ) -> None:
        self._queue, self._failed = member, failed

    def run(self, work: Callable[[], R], done: Callable[[R], None], blamed: str) -> None:
        """Call `work` now, and `done` with its result on the member's thread.

        `blamed` names the round or the model that an error is counted against.
        """
        try:
            found = work()
        except EdgedError as error:
            problem = None if isinstance(error, StoppedRunError) else error
            self._queue.put(lambda: self._failed(blamed, problem))
        except BaseException:
            self._queue.put(lambda: self._failed(blamed, None))
            raise
        else:
            self._queue.put(lambda: done(found))
