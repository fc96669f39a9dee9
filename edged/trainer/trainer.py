"""Execution of the daemon's orders: a learner, its training runs, and weights from elsewhere."""

from __future__ import annotations

from dataclasses import replace

from edged.config import Config
from edged.domain.federated.round_orders import TrainFrom, TrainRound, TryFleetModel
from edged.domain.judging.paired_test import block_of
from edged.domain.protocols import RunControl
from edged.domain.training import trainer_messages as messages
from edged.domain.training.message import Message
from edged.errors import ConfigError, TrainingError
from edged.host.vitals import written_bytes
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.signatures import open_bundle
from edged.storage.samples.log import SampleLog
from edged.trainer.fleet_rounds import FleetUpdateTrainer, RoundTrainer
from edged.trainer.foreign_weights import WeightImporter
from edged.trainer.label_review import LabelReviewer
from edged.trainer.learner import Learner
from edged.trainer.local_models import CandidateExporter, LocalModels
from edged.trainer.run import TrainingRun
from edged.trainer.steps import BatchSampler
from edged.trainer.task import EngineFactory, LearningTask


class Trainer:
    """Executes the daemon's orders with the parts that a configuration describes.

    `control` stops and paces runs and hears their reports; `setup` names the weights that the first run
    begins with, and whose samples are learned.
    """

    def __init__(self, config: Config, control: RunControl, setup: messages.Setup) -> None:
        if config.model.bundle is None:
            raise ConfigError("the trainer needs a bundle", where="model.bundle")
        bundle = open_bundle(config.model.bundle, config.model.keys)
        schema = config.stream.with_context(bundle.context).to_schema()
        bundle.check_schema(schema)
        state, training = config.storage.dir, config.training
        engines = EngineFactory(training.engine, bundle, providers=training.provider)
        engine = engines.open()
        self._log = samples = SampleLog.open(state / "samples.db", schema, readonly=True)
        task = LearningTask(training, schema, bundle, block_of(config.stream.window_rules))
        models = LocalModels(state, bundle)
        # Weights lie beside a model where they are published, and where nothing could read them from it.
        beside = config.weights.every is not None or engine.name == "native"
        exporter = CandidateExporter(state / "candidates", with_weights=beside)
        self._importer = WeightImporter(task, engine, samples, models, exporter)
        checkpoints = Checkpoints(state / "checkpoints")
        self.learner = Learner(task, engine, checkpoints, models, control)
        self.learner.restore(setup.base)
        sampler = BatchSampler(task, samples, control)
        self._run = TrainingRun(task, self.learner, samples, sampler, exporter, control)
        rounds = RoundTrainer(task, engines, self.learner, sampler, self._importer, control)
        self._reviewer = LabelReviewer(task, samples, control)
        self._in_fleet = config.fleet is not None
        self._round_trainer = rounds
        self._rounds = FleetUpdateTrainer(config.device.id, state, rounds, samples)

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def execute(self, order: Message) -> Message:
        """Execute an order and return its result."""
        match order:
            case messages.RunRequest():
                before = written_bytes()
                result = self._run.run(order)
                after = written_bytes()
                return replace(result, written=None if before is None or after is None else after - before)
            case TrainRound() if self._in_fleet:
                return self._rounds.contribute(order)
            case TrainFrom() if self._in_fleet:
                return self._round_trainer.train_from(order)
            case TryFleetModel():
                return self._importer.evaluate_fleet_model(order)
            case messages.ReviewLabels():
                return self._reviewer.review(order)
        return self._import(order)

    def _import(self, order: Message) -> Message:
        match order:
            case messages.AdoptInitial():
                return self._importer.import_initial(order)
            case messages.AdoptModel():
                return self._importer.import_model(order)
            case messages.AdoptWeights():
                return self._importer.import_weights(order)
        raise TrainingError(f"no order that this trainer executes: {type(order).__name__}", where="stdin")
