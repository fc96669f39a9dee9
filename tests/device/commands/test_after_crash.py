"""Commands that a crash cut off: each is answered with what became of it; nothing is trained twice."""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.storage.models.checkpoints import Checkpoints
from tests.device.commands.test_commands import LENIENT, ON_COMMAND, STREAM, feed
from tests.running_device import Device, running, wait_until
from tests.steered import answers, ask

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

pytestmark = pytest.mark.timeout(600)  # several starts of a daemon each
TRAINING = ON_COMMAND | {"checkpoint_every": 100}


def train(listener: Listener, name: str, **options: Any) -> None:
    """Ask for a run, without waiting for its end."""
    listener.publish("edged/rig/request/train", json.dumps({"transaction": name, **options}))
    listener.wait(lambda: answers(listener, "train", name), 60)


def result(listener: Listener, name: str) -> dict[str, Any]:
    """The last answer to such a request."""
    listener.wait(
        lambda: any(a["state"] not in ("accepted", "executing") for a in answers(listener, "train", name)), 90
    )
    final = answers(listener, "train", name)[-1]
    assert final["state"] == "successful", final
    return dict(final["data"])


@pytest.mark.slow
@pytest.mark.parametrize("paused", [False, True], ids=["", "paused"])
def test_every_train_is_answered_with_its_own_run(broker: Broker, tmp_path: Path, *, paused: bool) -> None:
    """A long run is cut off, others wait for it; a new one comes after the restart."""
    device = Device(tmp_path, broker.port, STREAM, training=TRAINING, gate=LENIENT)
    steps = {"long": 4000, "second": 30, "third": 40, "new": 50}
    with running(device, broker.port) as listener:
        feed(listener, 200)
        for name in ("long", "second", "third"):
            train(listener, name, steps=steps[name])
        wait_until((device.state / "checkpoints" / "3").exists, 60)
        if paused:
            ask(listener, "pause")
        device.stop(signal.SIGKILL)
        device.start()
        train(listener, "new", steps=steps["new"])
        if paused:
            result(listener, "new")
            ask(listener, "resume")
        told = {name: result(listener, name) for name in steps}
        assert {name: answer["steps"] for name, answer in told.items()} == steps
        order = sorted(steps, key=lambda name: told[name]["run"])
        assert order == (["second", "third", "new", "long"] if paused else list(steps))
        assert len({answer["run"] for answer in told.values()}) == 4
        assert len(listener.events("training_started")) == 5, "the cut-off one began twice, no other did"


@pytest.mark.slow
def test_a_run_that_began_by_itself_is_not_taken_for_a_command(broker: Broker, tmp_path: Path) -> None:
    training = {"engine": "portable", "steps": 4000, "max_steps": 4000, "checkpoint_every": 100}
    device = Device(
        tmp_path, broker.port, STREAM, training=training | {"every": None, "new_labels": 100}, gate=LENIENT
    )
    with running(device, broker.port) as listener:
        feed(listener, 200)
        wait_until((device.state / "checkpoints" / "3").exists, 60)
        train(listener, "t", steps=30)
        device.stop(signal.SIGKILL)
        device.start()
        assert result(listener, "t")["steps"] == 30
        done = [e for e in listener.events("training_finished") if e["outcome"] == "done"]
        assert [e["steps"] for e in done] == [4000, 30]
        assert [e["trigger"] for e in listener.events("training_started")][1:] == ["resume", "command"]


POINTS = {
    "before the candidate": ("edged.trainer.local_models", "CandidateExporter.export", "os.getppid()"),
    "before the gate": ("edged.device.promotion.rollout", "Rollout._consider", "os.getpid()"),
    "before the swap": ("edged.device.promotion.rollout", "Rollout._make_champion", "os.getpid()"),
    "before the answer": ("edged.device.learning.run_queue", "QueuedRun.finish", "os.getpid()"),
}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_trained_candidate_is_judged_after_the_crash_and_not_trained_again(
    point: str, broker: Broker, tmp_path: Path
) -> None:
    """The daemon is killed at a point between the run's last checkpoint and its answer."""
    module, method, process = POINTS[point]
    kind, _, name = method.partition(".")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
        import os, signal
        from {module} import {kind}
        usual = {kind}.{name}
        def cut(*arguments, **named):
            os.kill({process}, signal.SIGKILL)
            return usual(*arguments, **named)
        {kind}.{name} = cut
        """)
    )
    device = Device(tmp_path, broker.port, STREAM, training=TRAINING, gate=LENIENT)
    with running(device, broker.port) as listener:
        feed(listener, 200)
        device.stop()
        device.start(PYTHONPATH=f"{tmp_path / 'site'}:{Path(__file__).parents[3]}")
        train(listener, "t", steps=120)
        assert device.process is not None
        assert device.process.wait(60) == -signal.SIGKILL
        device.start()
        assert result(listener, "t")["steps"] == 120
        listener.wait(lambda: listener.events("model_promoted"), 60)
        newest = Checkpoints(device.state / "checkpoints", 3).latest()
        assert newest is not None
        assert newest.state["learner"]["total_steps"] == 120, "no step is done twice"
        assert listener.events("model_promoted")[0]["version"] in (2, 3)
        started = [e["trigger"] for e in listener.events("training_started")]
        assert started == ["command"] if point == "before the answer" else ["command", "resume"]
        assert ask(listener, "train", transaction="t", steps=120)["data"]["steps"] == 120
