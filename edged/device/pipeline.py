"""Everything of one stream that serves and learns; nothing of the device it runs on.

A sample goes from `ingestor` to `serving`, whose `predictor` answers it with the champion, and to
`committer`, which makes it durable. A label joins its sample in `committer` and is judged by `predictor`;
`worker` lets `scheduler` start a training run when one is due, and `rollout` has `evaluator` judge its
candidate and `models` store it, and brings it into service.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.clock import Clock
from edged.config import Config
from edged.config.judging import LabelsConfig
from edged.device.events import Events
from edged.device.learning.changes import AnomalyExclusion
from edged.device.learning.conditions import ConditionsReader
from edged.device.learning.scheduler import TrainingScheduler
from edged.device.learning.trainer_client import TrainerClient
from edged.device.learning.worker import CANCELLED
from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_store import ModelStore
from edged.device.promotion.rollout import Rollout
from edged.device.serving.head_teacher import HeadTeacher
from edged.device.serving.predictor import Predictor
from edged.device.startup.recovery import UnfinishedRun, restored
from edged.domain.judging.expert_mix import mix_of
from edged.domain.judging.paired_test import judged_on
from edged.domain.judging.prediction_sets import PredictionSets
from edged.domain.judging.ridge_head import RidgeHead
from edged.domain.labels.label_requests import LabelRequests
from edged.domain.protocols import ModelReader
from edged.domain.stream.schema import Schema
from edged.host.turns import TurnThreads
from edged.storage.models.bundles import Bundle
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog


@dataclass(frozen=True)
class Host:
    """Host of a stream: a device, a replay, a simulated device, or a command beside the daemon.

    `events` hears what happens, `models` loads models, `client` is the trainer. Without `conditions`
    training is held back by nothing but the time of day.
    """

    events: Events
    clock: Clock
    models: ModelReader
    client: TrainerClient
    conditions: ConditionsReader | None = None


class SharedThreads:
    """The threads of a device with several streams, whose loops take turns on them.

    Two for predictions, so that a slow model holds up no other; as many for commits, so that the disk has
    work, and one for the samples that come meanwhile; two for runs, changes and messages that must arrive.
    """

    def __init__(self) -> None:
        self.ingest = TurnThreads("ingest", 3, kept=1)
        self.serve = TurnThreads("serve", 2)
        self.background = TurnThreads("background", 2)


class Pipeline:
    """One stream as a replay drives it: no threads. Its first model is loaded and serves.

    `samples` is written to; `reader` is another connection to the same log, for reading only. Raises
    ModelError when not even the bundle's own model can be loaded; ConfigError or UnavailableError when no
    model can be loaded the way the configuration asks for.
    """

    def __init__(
        self,
        config: Config,
        bundle: Bundle,
        registry: Registry,
        samples: SampleLog,
        reader: SampleLog,
        host: Host,
    ) -> None:
        self.config, self.registry, self.clock = config, registry, host.clock
        self.samples, self.reader = samples, reader
        self.schema = schema = config.stream.to_schema()
        holdout = judged_on(reader, config.stream.window_rules)
        self.mix = mix_of(schema, head_of(config, bundle, schema))
        restored(registry, "mix", self.mix.restore)
        self.evaluator = CandidateEvaluator(config, registry, holdout, host.models, self.mix)
        self.models = ModelStore(config, registry, host.models, host.clock, self.mix)
        self.teacher = HeadTeacher(self.mix.head, reader, schema, config.gate.holdout)
        self.predictor = Predictor(
            config.serving,
            config.gate,
            schema,
            self.models.boot(bundle.inference_model, bundle.inference_sha256, random=bundle.seed is not None),
            config.drift.rules(),
            config.anomaly.rules(),
            self.mix,
            prediction_sets(registry, config.serving.coverage, schema),
            self.teacher,
        )
        self.scheduler = TrainingScheduler(
            config,
            registry=registry,
            samples=reader,
            client=host.client,
            predictor=self.predictor,
            bundle=bundle.fingerprint,
            events=host.events,
            clock=host.clock,
            conditions=host.conditions,
        )
        self.rollout = Rollout(self.evaluator, self.models, self.predictor, host.events)
        self.exclusion = AnomalyExclusion(self.predictor.anomalies, samples)

    def resume(self, unfinished: UnfinishedRun | None) -> None:
        """Restore what an earlier process left: detectors, thresholds, the probation of the champion.

        `unfinished` is the training run that was cut off: it continues, unless it was cancelled.
        """
        if unfinished is not None and not self.registry.get_value(CANCELLED):
            self.scheduler.unfinished, self.scheduler.triggers.interrupted = unfinished, True
        restored(self.registry, "drift", self.predictor.drift.restore)
        if self.predictor.anomalies is not None:
            restored(self.registry, "anomalies", self.predictor.anomalies.restore)
        champion = self.predictor.champion.version
        predecessor = self.models.unproven(champion)
        if predecessor is not None:
            self.predictor.resume(predecessor)

    def record_champion(self, version: int) -> None:
        """Publish that model `version` serves from now on."""
        self.rollout.events.states_changed()
        self.rollout.events.champion_changed(version)


def head_of(config: Config, bundle: Bundle, schema: Schema) -> RidgeHead | None:
    """Make the closed-form head of a stream, where it has one: configured, or beside the standard experts."""
    wanted = config.model.head or ("ridge" if bundle.context else "none")
    return RidgeHead.of(schema) if wanted == "ridge" else None


def prediction_sets(registry: Registry, coverage: float | None, schema: Schema) -> PredictionSets | None:
    """Make what makes sets of this coverage, as the registry has it; None without a coverage."""
    if coverage is None:
        return None
    sets = PredictionSets(coverage, schema)
    restored(registry, "sets", sets.restore)
    return sets


def label_requests(labels: LabelsConfig, holdout: float, seed: int) -> LabelRequests:
    """Make the rule that chooses samples whose labels are asked for; `holdout` is the gate's share."""
    return LabelRequests(
        labels.request_share,
        random=labels.constants.request_random,
        holdout=holdout,
        per_day=labels.requests_per_day,
        seed=seed,
    )
