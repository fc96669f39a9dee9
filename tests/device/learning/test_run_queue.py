"""Runs that somebody has asked for: they wait for each other, are shared, cancelled, and told of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.learning.run_queue import QueuedRun, RunQueue
from edged.device.learning.scheduler import HELD_RUN
from edged.device.startup.recovery import UnfinishedRun
from edged.domain.commands.tasks import Task, TaskProgress
from edged.domain.judging.verdict import Verdict
from edged.domain.training.trainer_messages import RunProgress
from edged.domain.training.training_run import (
    Candidate,
    JudgedCandidate,
    RunCause,
    RunEnd,
    RunOptions,
    RunResult,
)
from edged.domain.training.triggers import Triggers
from edged.errors import EdgedError, RefusedError
from tests.device.learning.test_urgent_work import House

if TYPE_CHECKING:
    from edged.domain.commands.rules import Request
    from edged.storage.models.bundles import Bundle


@pytest.fixture
def house(tmp_path: Path, bundle: Bundle) -> Iterator[House]:
    """Its threads are not started: what was asked for waits."""
    made = House(tmp_path, bundle)
    yield made
    made.desk.scheduler.client.close()
    made.gate.close()


class Desk:
    """Keeps what tasks say."""

    response_topic, correlation = None, None

    def __init__(self) -> None:
        self.told: list[tuple[str, str, Any]] = []
        self.tasks: dict[str, Task] = {}

    def task(self, name: str) -> Task:
        self.tasks[name] = Task(self, "train", {"transaction": name}, name, self)
        return self.tasks[name]

    def mark_executing(self, task: Task) -> None:
        self.told.append((task.transaction, "executing", None))

    def progress(self, task: Task, done: TaskProgress | RunProgress) -> None:
        self.told.append((task.transaction, "progress", done.to_json()))

    def finish(self, task: Task, outcome: Request | EdgedError) -> None:
        told = outcome.what if isinstance(outcome, EdgedError) else outcome
        self.told.append((task.transaction, "finished", told))


def test_those_who_ask_for_the_same_share_a_run_and_others_wait(house: House) -> None:
    desk, learning = Desk(), house.learning
    for name in ("a", "b"):
        learning.command(RunOptions(steps=5), desk.task(name))
    for steps in range(1, RunQueue.MOST):
        learning.command(RunOptions(steps=100 + steps))
    with pytest.raises(RefusedError, match="8 runs that were asked for have not begun"):
        learning.command(RunOptions(steps=1))
    learning.command(RunOptions(steps=5), desk.task("c"))
    assert house.desk.scheduler.triggers.wanted(0) == "command"


def test_a_run_that_has_not_begun_can_be_cancelled_by_each_who_asked(house: House) -> None:
    desk, learning, wanted = Desk(), house.learning, house.desk.scheduler.triggers.wanted
    first, second = desk.task("a"), desk.task("b")
    learning.command(RunOptions(steps=5), first)
    learning.command(RunOptions(steps=5), second)
    assert learning.cancel(first) is None
    assert desk.told == [("a", "finished", "cancelled before it started")]
    assert wanted(0) == "command", "the other one still wants it"
    assert learning.cancel(second) is None
    assert wanted(0) is None
    for nothing in (first, None):
        with pytest.raises(RefusedError, match="no run is under way"):
            learning.cancel(nothing)


def test_a_run_that_had_ended_untold_is_told_of_after_a_restart_and_not_done_again(house: House) -> None:
    desk, registry, wanted = Desk(), house.desk.registry, house.desk.scheduler.triggers.wanted
    ended = registry.begin_run("command", 1.0, RunCause(steps=5, asked_by=("a",)))
    result = RunResult(
        ended, "command", 1, Path("/a/path"), 40, 1, 40, 90, 0, (), "b", 5, 0, 1.5, 0.5,
        "native", 2.0,
    )  # fmt: skip
    registry.end_run(ended, 2.0, "done", result)
    registry.begin_run("command", 3.0, RunCause(asked_by=("b",)))
    house.learning.adopt(RunOptions(steps=5), desk.task("a"))
    end = RunEnd(ended, "native", 5, 40, 0, 2.0, 1.5, 0.5, 1)
    assert desk.told == [("a", "finished", {**end.answer(), "verdict": None})]
    assert end.answer()["steps"] == 5
    assert wanted(0) is None
    house.learning.adopt(RunOptions(), desk.task("b"))
    assert wanted(0) == "command", "that one has not ended"
    assert len(desk.told) == 1


def test_a_run_that_was_cut_off_waits_for_the_end_of_a_pause_and_one_that_has_not_begun_does_not(
    house: House,
) -> None:
    desk, learning, scheduler = Desk(), house.learning, house.desk.scheduler
    house.desk.registry.begin_run("command", 1.0, RunCause(asked_by=("a", "b")))
    scheduler.triggers.interrupted = scheduler.paused = True
    scheduler.unfinished = UnfinishedRun(1, trained=False)
    for name in ("a", "b"):
        learning.adopt(RunOptions(steps=5), desk.task(name))
    assert scheduler.due() is None
    assert scheduler.waiting_for == (HELD_RUN,)
    learning.adopt(RunOptions(steps=5), desk.task("c"))
    assert scheduler.triggers.wanted(0) == "command"
    assert learning.cancel(desk.tasks["c"]) is None
    scheduler.paused = False
    assert scheduler.due() == "resume"
    queue = RunQueue(scheduler.triggers)
    for name in ("a", "b"):
        queue.resume(QueuedRun(RunOptions(steps=5), [desk.tasks[name]], resumes=True))
    assert queue.pop("resume").tasks == [desk.tasks["a"], desk.tasks["b"]]


def test_where_only_commands_train_a_run_that_was_cut_off_goes_on_as_the_command_that_it_is(
    house: House,
) -> None:
    desk, scheduler = Desk(), house.desk.scheduler
    house.desk.registry.begin_run("command", 1.0, RunCause(asked_by=("a",)))
    scheduler.triggers.interrupted, scheduler.enabled = True, False
    scheduler.unfinished = UnfinishedRun(1, trained=False)
    house.learning.adopt(RunOptions(steps=5), desk.task("a"))
    assert scheduler.due() == "command"


def test_after_a_cancelled_run_as_many_labels_have_to_come_as_start_one() -> None:
    triggers = Triggers(new_labels=40, drifted=True, interrupted=True)
    triggers.cancelled(100)
    assert triggers.wanted(139) is None
    assert triggers.wanted(140) == "labels"
    triggers.commanded = True
    assert triggers.wanted(0) == "command"


def test_the_end_of_a_run_is_told_to_all_who_asked_for_it() -> None:
    desk = Desk()
    order = QueuedRun(RunOptions(steps=5), [desk.task("a"), desk.task("b")])
    order.progress(RunProgress(7, 3, 5, None))
    record = {
        "engine": "native", "steps": 5, "samples": 40, "skipped": 0, "seconds": 0.5, "loss_first": 1.0,
        "loss_last": 0.1, "generation": 3,
    }  # fmt: skip
    judged = JudgedCandidate(Candidate(7, Path("/a/path"), None), Verdict(True, ("better",)), 2, "Learned.")
    order.finish(RunEnd.from_json({**record, "candidate": "/a/path", "run": 7}), judged)
    verdict = {
        "run": 7, "accepted": True, "reasons": ["better"], "numbers": {}, "forgets": False,
        "promoted": 2, "summary": "Learned.",
    }  # fmt: skip
    told = {"run": 7, **record, "outcome": "done", "verdict": verdict}
    shown = {"run": 7, "step": 3, "steps": 5, "loss": None}
    assert desk.told[:2] == [("a", "progress", shown), ("b", "progress", shown)]
    assert desk.told[2:] == [("a", "finished", told), ("b", "finished", told)]
    order.fail(EdgedError("too late"))
    assert len(desk.told) == 4
    failed = QueuedRun(tasks=[desk.task("c")])
    failed.finish(RunEnd(8, outcome="failed", error="no memory"), None)
    assert desk.told[-1] == ("c", "finished", "no memory")
