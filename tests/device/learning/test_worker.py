"""The learning thread erases between two runs, while everything else goes on."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.clock import SystemClock
from edged.config import GateConfig, ServingConfig
from edged.device.events import Events, Listener
from edged.device.learning.changes import AnomalyExclusion
from edged.device.learning.worker import TrainingWorker
from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_store import ModelStore
from edged.device.promotion.rollout import Rollout
from edged.device.serving.predictor import Predictor
from edged.engines.inference import InferenceReader
from tests.device.trainers import Desk, Plant

if TYPE_CHECKING:
    from edged.domain.events import Event
    from edged.storage.models.bundles import Bundle


class Judged(Listener):
    """Hands on what is told of candidates."""

    def __init__(self) -> None:
        self.verdicts: queue.Queue[Mapping[str, Any]] = queue.Queue()

    def event(self, event: Event) -> None:
        self.verdicts.put(event.to_json())


@pytest.mark.slow
def test_what_is_erased_is_gone_and_learning_goes_on(tmp_path: Path, bundle: Bundle) -> None:
    state = tmp_path / "state"
    plant = Plant(state, bundle, new_labels=100)
    desk = Desk(plant)
    schema, judged = plant.config.stream.to_schema(), Judged()
    reader = InferenceReader()
    evaluator = CandidateEvaluator(plant.config, desk.registry, plant.log, reader)
    models = ModelStore(plant.config, desk.registry, reader, SystemClock())
    predictor = Predictor(ServingConfig(), GateConfig(), schema, models.boot(bundle.inference_model))
    rollout = Rollout(evaluator, models, predictor, Events(judged))
    learning = TrainingWorker(
        scheduler=desk.scheduler, rollout=rollout, samples=plant.log, registry=desk.registry,
        exclusion=AnomalyExclusion(None, plant.log),
    )  # fmt: skip
    erased: queue.Queue[dict[str, int]] = queue.Queue()
    with closing(plant.log), closing(desk.registry), closing(desk.scheduler.client):
        learning.start()
        learning.wake()
        judged.verdicts.get(timeout=60)
        serving = predictor.champion.version
        trainer = desk.scheduler.client.pid
        assert trainer is not None
        learning.between_runs(lambda: erased.put(learning.erase(state, samples=True, checkpoints=True)))
        gone = erased.get(timeout=30)
        assert (gone["samples"], gone["labels"], gone["quarantined"]) == (300, 300, 0)
        assert gone["checkpoints"] >= 5, "files of two generations"
        assert not Path(f"/proc/{trainer}").exists(), "it held samples in its memory"
        assert not (state / "checkpoints").exists()
        assert predictor.champion.version == serving
        plant.feed(300, seed=1)
        learning.wake()
        told = judged.verdicts.get(timeout=60)
        assert told["run"] == 2
        learning.stop()
        learning.join(30)
        assert desk.outcomes() == ["done", "done"]
    assert desk.scheduler.consumed == 600
