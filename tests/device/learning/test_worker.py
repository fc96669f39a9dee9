"""The learning thread erases between two runs, while everything else goes on."""

from __future__ import annotations

import queue
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.clock import SystemClock
from edged.config import GateConfig, ServingConfig
from edged.device.learning.regime_recall import RegimeRecall
from edged.device.learning.worker import TrainingWorker
from edged.device.promotion import Promoter
from edged.device.promotion.rollout import Rollout
from edged.device.serving import Predictor
from edged.engines.inference import InferenceModel
from tests.device.trainers import Desk, Plant

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle


@pytest.mark.slow
def test_what_is_erased_is_gone_and_learning_goes_on(tmp_path: Path, bundle: Bundle) -> None:
    state = tmp_path / "state"
    plant = Plant(state, bundle, min_new_samples=100)
    desk = Desk(plant)
    promoter = Promoter(
        config=GateConfig(), schema=plant.config.stream.to_schema(), registry=desk.registry,
        holdout=plant.log,
        load_model=InferenceModel, clock=SystemClock(), keep_models=10, staging=state / "candidates",
    )  # fmt: skip
    server = Predictor(
        ServingConfig(), GateConfig(), plant.config.stream.to_schema(), promoter.boot(bundle.inference_model)
    )
    judged: queue.Queue[dict[str, Any]] = queue.Queue()
    succession = Rollout(promoter, server, lambda _, told: judged.put(told), desk.learner.rest)
    learning = TrainingWorker(
        learner=desk.learner, succession=succession, samples=plant.log, registry=desk.registry,
        publish_states=lambda: None, promoted=lambda _: None,
        recall=RegimeRecall(plant.config.stream.to_schema(), promoter.regimes, plant.log), drift_state=dict,
    )  # fmt: skip
    erased: queue.Queue[dict[str, int]] = queue.Queue()
    with closing(plant.log), closing(desk.registry), closing(desk.learner.process):
        learning.start()
        learning.wake()
        judged.get(timeout=60)
        serving = server.champion.version
        trainer = desk.learner.process.pid
        assert trainer is not None
        learning.erase(state, erased.put, samples=True, checkpoints=True)
        gone = erased.get(timeout=30)
        assert (gone["samples"], gone["labels"], gone["quarantined"]) == (300, 300, 0)
        assert gone["checkpoints"] >= 5, "files of two generations"
        assert not Path(f"/proc/{trainer}").exists(), "it held samples in its memory"
        assert not (state / "checkpoints").exists()
        assert server.champion.version == serving
        plant.feed(300, seed=1)
        learning.wake()
        told = judged.get(timeout=60)
        assert told["run"] == 2
        learning.end()
        learning.join(30)
        assert desk.outcomes() == ["done", "done"]
    assert desk.learner.consumed == 600
