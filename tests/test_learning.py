"""What is left to the learning thread is carried out, whatever the disk says at first."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edged import learning as module
from edged.errors import StorageError
from edged.learning import Learning

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class Idle:
    """A learner that never has anything to do, and whatever else the thread could ask of its parts."""

    def step(self, _options: dict[str, Any]) -> None:
        return None


@contextmanager
def at_work() -> Iterator[Learning]:
    parts: dict[str, Any] = dict.fromkeys(("succession", "samples", "registry", "publish_states", "promoted"))
    learning = Learning(learner=Idle(), **parts)  # type: ignore[arg-type]
    learning.start()
    yield learning
    learning.end()
    learning.join(10)


def test_an_action_that_the_disk_refuses_is_tried_again_and_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    done: list[str] = []
    finished = threading.Event()

    def roll_back() -> None:
        done.append("tried")
        if len(done) < 3:
            raise StorageError("database or disk is full", where="state.db")

    def then() -> None:
        done.append("then")
        finished.set()

    with at_work() as learning:
        learning.later(roll_back)
        learning.later(then)
        assert finished.wait(10)
    assert done == ["tried", "tried", "tried", "then"]


def test_an_action_that_fails_otherwise_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    calls: list[str] = []
    finished = threading.Event()

    def bad() -> None:
        calls.append("bad")
        raise ValueError("never")

    with at_work() as learning:
        learning.later(bad)
        learning.later(finished.set)
        assert finished.wait(10)
    assert calls == ["bad"]
