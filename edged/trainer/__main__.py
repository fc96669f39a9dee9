"""The trainer process: `python -m edged.trainer`, which the daemon starts through `edged.host.oom_first`.

Reads messages of `edged.domain.training.trainer_messages` as JSON lines on stdin: first a `Setup`, then one
order after the other, and `Pace` or `WriteCheckpoint` at any time, see `DaemonPipe`. Writes such lines on
stdout: reports, and for each order its result or `OrderFailed`. Ends when stdin closes, when idle for
`training.resident` seconds (unless that is 0), or on SIGTERM (after a checkpoint).

Exit codes: 0 done or idle; 1 a run failed; 2 configuration or bundle unusable; 3 the bundle is not signed as
it must be; 4 engine not available here; 130 stopped in the middle of a run, after a checkpoint.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from edged.config import loader
from edged.domain.federated.round_orders import TrainRound, TryFleetModel
from edged.domain.judging.overlap import block_of
from edged.domain.model_files import INT8
from edged.domain.training import trainer_messages as messages
from edged.errors import (
    BundleError,
    ConfigError,
    CorruptError,
    EdgedError,
    NoDataError,
    RefusedError,
    StorageError,
    TrainingError,
)
from edged.host import heap
from edged.host.cpu_affinity import fitting, for_training
from edged.host.process_limits import ChildLimits, apply, die_with_parent
from edged.host.vitals import written_bytes
from edged.storage.files.atomic import scratch
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.signatures import open_bundle
from edged.storage.samples.log import SampleLog
from edged.trainer.batches import BatchSampler
from edged.trainer.candidate import CandidateExporter
from edged.trainer.challenger import Challenges
from edged.trainer.daemon_pipe import DaemonPipe
from edged.trainer.engine_selection import choose
from edged.trainer.fleet_training import RoundTrainer
from edged.trainer.fleet_update import FleetUpdateTrainer, LearnerData
from edged.trainer.foreign_weights import WeightImporter
from edged.trainer.label_review import LabelReviewer
from edged.trainer.learner import Learner
from edged.trainer.local_models import LocalModels
from edged.trainer.run import TrainingRun
from edged.trainer.task import EngineFactory, LearningTask

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.training.message import Message

MORE_MEMORY = "raise training.memory_limit or lower training.batch"
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


def main() -> int:
    """Entry point of the process."""
    heap.freeze()
    die_with_parent()
    pipe = DaemonPipe()
    try:
        return serve(pipe)
    except EdgedError as problem:
        pipe.report(_failure(problem))
        return 2 if isinstance(problem, BundleError | CorruptError) else problem.exit_code
    except MemoryError:
        pipe.report(_failure(TrainingError("out of memory", remedy=MORE_MEMORY), "MemoryError"))
        return 1
    except BrokenPipeError:
        return 0
    except Exception as problem:  # noqa: BLE001  the top of the process
        # One line for the daemon, whatever it was; the rest is in the log.
        traceback.print_exc()
        error = _foreign(problem)
        pipe.report(_failure(error, "" if isinstance(error, StorageError) else type(problem).__name__))
        return 1


def serve(pipe: DaemonPipe) -> int:
    """Set the process up as the first message says, and execute orders; the exit code."""
    first = pipe.next_order(None)
    if first is None:
        return 0
    if not isinstance(first, messages.Setup):
        raise TrainingError(f"expected Setup as the first message, got {type(first).__name__}", where="stdin")
    config = loader.from_json(first.config)
    training = config.training
    limits = ChildLimits(
        nice=training.nice,
        affinity=for_training(training.affinity, training.threads),
        memory_limit=training.memory_limit,
        idle_cpu=training.scheduling == "idle",
    )
    for warning in apply(limits):
        pipe.report(messages.LogLine(warning))
    threads = fitting(training.threads)
    if threads < training.threads:
        pipe.report(messages.LogLine(f"training.threads: there are processors for {threads} only"))
        training = training.model_copy(update={"threads": threads})
        config = config.model_copy(update={"training": training})
    with nullcontext() if first.durable else scratch():
        return _execute_all(Trainer(config, pipe, first), pipe, config.training.resident or None)


def _execute_all(trainer: Trainer, pipe: DaemonPipe, idle: float | None) -> int:
    pipe.report(messages.Ready(os.getpid()))
    code = 0
    while (order := pipe.next_order(idle)) is not None:
        try:
            if isinstance(order, messages.Setup):  # another learner's turn
                trainer.close()
                trainer = Trainer(loader.from_json(order.config), pipe, order)
                continue
            pipe.report(trainer.execute(order))
            code = 0
        except NoDataError as problem:
            consumed = trainer.learner.state.consumed
            pipe.report(messages.OrderFailed(problem.line(), reason=messages.NO_DATA, consumed=consumed))
        except RefusedError as problem:  # what came from elsewhere was no good; nothing is wrong here
            pipe.report(_failure(problem))
        except EdgedError as problem:
            pipe.report(_failure(problem))
            return problem.exit_code
    return code


class Trainer:
    """Executes the daemon's orders with the parts that a configuration describes.

    `control` is the pipe to the daemon; `setup` names the weights that the first run begins with, and whose
    samples are learned.
    """

    def __init__(self, config: Config, control: DaemonPipe, setup: messages.Setup) -> None:
        if config.model.bundle is None:
            raise ConfigError("the trainer needs a bundle", where="model.bundle")
        bundle = open_bundle(config.model.bundle, config.model.keys)
        schema = config.stream.with_context(bundle.context).to_schema()
        bundle.check_schema(schema)
        state, training = config.storage.dir, config.training
        if training.guide != "none" and training.engine == "auto":
            training = training.model_copy(update={"engine": "portable"})
        chosen = choose(
            training, bundle, setup.log or state, warn=lambda what: control.report(messages.LogLine(what))
        )
        if chosen.new:
            control.report(messages.EngineChosen(chosen.line()))
        engines = EngineFactory(chosen.engine, bundle, training.threads, training.provider)
        engine = engines.open()
        self._log = samples = SampleLog.open((setup.log or state) / "samples.db", schema, readonly=True)
        self._key = setup.key
        if setup.key is not None:
            samples = samples.of_key(setup.key)
        task = LearningTask(training, schema, bundle, block_of(config.stream.window_rules))
        models = LocalModels(state, bundle)
        # Weights lie beside a model where they are published, and where nothing could read them from it.
        beside = config.report.weights or engine.name == "native"
        exporter = CandidateExporter(
            state / "candidates",
            bundle,
            weights_metadata={"device": config.device.id} if beside else None,
            quantise=config.serving.quantise == INT8,
        )
        self._importer = WeightImporter(task, engine, samples, models, exporter, config.weights.max_bytes)
        checkpoints = Checkpoints(state / "checkpoints", training.keep_checkpoints)
        challenges = Challenges(task, engines, samples, control)
        self.learner = Learner(task, engine, checkpoints, models, challenges, control)
        self.learner.restore(setup.base)
        sampler = BatchSampler(task, samples, control)
        self._run = TrainingRun(task, self.learner, samples, sampler, models, exporter, control)
        data = LearnerData(task, self.learner, samples, sampler, self._importer)
        rounds = RoundTrainer(task, engines, data, control)
        self._reviewer = LabelReviewer(task, samples, control)
        self._in_fleet = config.fleet is not None
        self._rounds = FleetUpdateTrainer(config.device.id, state, rounds, data, config.weights.max_bytes)

    def close(self) -> None:
        """Close the log: another learner takes this one's place."""
        self._log.close()

    def execute(self, order: Message) -> Message:
        """Execute an order and return its result."""
        match order:
            case messages.RunRequest():
                if order.key != self._key:
                    raise TrainingError(f"set up for {self._key!r}", where=f"order about {order.key!r}")
                before = written_bytes()
                result = self._run.run(order)
                after = written_bytes()
                return replace(result, written=None if before is None or after is None else after - before)
            case TrainRound() if self._in_fleet:
                return self._rounds.contribute(order)
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


def _failure(problem: EdgedError, reason: str = "") -> messages.OrderFailed:
    return messages.OrderFailed(problem.what, problem.where, problem.remedy, reason or type(problem).__name__)


def _foreign(problem: Exception) -> EdgedError:
    """Describe an error that is not our own, in one line."""
    text = " ".join(str(problem).split()) or "no message"
    if isinstance(problem, OSError) and problem.errno in DISK_ERRORS:
        return StorageError(text, where="trainer")
    if isinstance(problem, OSError) and problem.errno == errno.ENOMEM:
        return TrainingError(text, remedy=MORE_MEMORY)
    if isinstance(problem, ImportError) and "failed to map segment" in text:
        return TrainingError(f"out of memory: {text}", remedy=MORE_MEMORY)
    return TrainingError(f"{type(problem).__name__}: {text}", where="trainer")


if __name__ == "__main__":
    sys.exit(main())
