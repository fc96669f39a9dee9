"""`kill -9` of daemon and trainer at random moments, under load from a real broker.

The short form runs with all tests, the long one with `make test-faults`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.domain.training.trainer_messages import RunRequest
from edged.errors import TrainingError
from tests.device.learning_rig import model_bytes
from tests.device.trainers import Ear, Plant
from tests.faults.plant import STREAM, TRAINING, Gateway, campaign, whole
from tests.running_device import Device, running

if TYPE_CHECKING:
    from edged.domain.training.training_run import RunResult
    from edged.storage.models.bundles import Bundle
    from tests.mosquitto import Mosquitto as Broker


KILLS = int(os.environ.get("EDGED_FAULTS_KILLS", "300"))
READY_SECONDS = 3.0
ENOUGH = 20  # restarts, for their median to say something
# No life of a trainer is longer than this part of the whole work: a kill leaves work for the next.
LONGEST_LIFE = 0.2
RUN: dict[str, Any] = {"checkpoint_every": 50, "batch": 16}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics
    from tests.building import build

    path: Path = tmp_path_factory.mktemp("bundles") / "classifier"
    return build(mlp(5, 3, (16,)), path, loss="cross_entropy", standardise=Statistics.identity(5))


@pytest.mark.parametrize(
    ("kills", "rate"),
    [
        pytest.param(8, 100.0, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(KILLS, 100.0, marks=[pytest.mark.faults, pytest.mark.timeout(5400)]),
    ],
)
def test_no_message_is_lost_or_stored_twice_whatever_is_killed(
    broker: Broker, tmp_path: Path, kills: int, rate: float
) -> None:
    seed = int(os.environ.get("EDGED_FAULTS_SEED", random.randrange(10_000)))
    device = Device(
        tmp_path, broker.port, STREAM, training=TRAINING, model={"hidden": [8]},
        gate={"min_holdout": 5, "probation": 50}, storage={"max_bytes": "512MiB"},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        gateway = Gateway(broker.port, rate)
        try:
            tally = campaign(device, listener, gateway, kills, seed)
        finally:
            gateway.stop()
    print(f"seed {seed}: {tally.line()}")  # noqa: T201  the figures of the long form
    assert (tally.lost, tally.doubled) == (0, 0), f"seed {seed}"
    assert tally.daemon_kills > 0 < tally.trainer_kills
    assert tally.kills >= kills
    # On a machine that does other things, too, what a start needs is judged, not how long it is kept waiting.
    assert max(restart.processor for restart in tally.ready) <= READY_SECONDS
    own = sorted(restart.wall - restart.waited for restart in tally.ready)
    assert len(own) < ENOUGH or own[len(own) // 2] <= READY_SECONDS
    whole(device)


@pytest.mark.parametrize(
    ("kills", "steps"),
    [
        pytest.param(4, 20_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(200, 300_000, marks=[pytest.mark.faults, pytest.mark.timeout(3600)]),
    ],
)
def test_a_trainer_that_is_killed_at_random_ends_with_the_weights_of_one_that_is_not(
    tmp_path: Path, bundle: Bundle, kills: int, steps: int
) -> None:
    settings = RUN | {"steps": steps, "max_steps": steps}
    began = time.monotonic()
    with closing(Plant(tmp_path / "straight", bundle, **settings).process()) as process:
        undisturbed = process.run(RunRequest(1, "labels"), Ear())
    latest = min(2.5, LONGEST_LIFE * (time.monotonic() - began))
    rng = random.Random(int(os.environ.get("EDGED_FAULTS_SEED", "1")))
    plant, killed, run = Plant(tmp_path / "killed", bundle, **settings), 0, 0
    result: RunResult | None = None
    endings: set[str] = set()
    with closing(plant.process()) as process:
        while result is None:
            run += 1
            timer = threading.Timer(_moment(rng, latest), _kill, (process,))
            if killed < kills:
                timer.start()
            try:
                result = process.run(RunRequest(run, "labels"), Ear())
            except TrainingError as problem:
                endings.add(problem.what)
                killed += 1
            finally:
                timer.cancel()
                timer.join() if timer.ident else None
    print(f"killed {killed} times in {run} runs")  # noqa: T201  the figures of the long form
    assert killed >= min(kills, 3)
    assert endings == {"the trainer was killed by SIGKILL"}
    assert model_bytes(result) == model_bytes(undisturbed)
    assert (result.memory, result.consumed) == (undisturbed.memory, undisturbed.consumed)


def _moment(rng: random.Random, latest: float) -> float:
    """Often while it starts, often while it learns."""
    return rng.uniform(0.05, latest)


def _kill(process: Any) -> None:
    pid = process.pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
