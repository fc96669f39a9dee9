"""Work that may hang, done where it holds up nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError  # noqa: A004  the built-in one from Python 3.11 on
from typing import TypeVar

from edged.errors import ModelError

T = TypeVar("T")


def within(seconds: float, doing: str, work: Callable[[], T]) -> T:
    """The result of `work`, or what it raises; a thread of its own does it. ModelError when it takes longer.

    A thread cannot be ended: one that takes too long is left behind, and what it brings later is
    not looked at. So `work` must not hold a lock that others need. `doing` names it in the error.

    >>> within(5.0, "adding", lambda: 1 + 1)
    2
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001  the caller gets it
            done.set_exception(problem)

    threading.Thread(target=run, name=doing, daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise ModelError(f"{doing} took longer than {seconds:g} s", remedy="raise gate.timeout") from None
