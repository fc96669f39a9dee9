"""Everything of one stream that serves and learns; nothing of the device it runs on.

A sample goes from `ingestor` to `serving`, whose `predictor` answers it with the champion, and to
`committer`, which makes it durable. A label joins its sample in `committer` and is judged by `predictor`;
`worker` lets `scheduler` start a training run when one is due, and `rollout` has `evaluator` judge its
candidate and `models` store it, and brings it into service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.device.ingest import GroupCommitter, IngestNotices, Ingestor, SampleDecoder
from edged.device.learning.anomaly_exclusion import AnomalyExclusion
from edged.device.learning.regime_recall import RegimeRecall
from edged.device.learning.scheduler import TrainingScheduler
from edged.device.learning.worker import CANCELLED, TrainingWorker
from edged.device.promotion import CandidateEvaluator, ModelStore, Rollout
from edged.device.serving import Predictor, ServingWorker
from edged.device.serving.label_requester import LabelRequester
from edged.device.startup.restore import restore_anomalies, restore_drift, stored_regimes
from edged.domain.judging.label_requests import LabelRequests
from edged.domain.judging.overlap import judged_on
from edged.domain.stream.admission import AdmissionControl
from edged.mqtt.codecs import sample_codec

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import Config
    from edged.config.judging import LabelsConfig
    from edged.device.events import Events
    from edged.device.learning.conditions import ConditionsReader
    from edged.device.learning.trainer_client import TrainerClient
    from edged.domain.judging.latencies import Latencies
    from edged.domain.protocols import ModelReader
    from edged.domain.stream.schema import Schema
    from edged.host.systemd import Watchdog
    from edged.mqtt.client.session import Session
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.registry import Registry
    from edged.storage.samples.log import SampleLog


@dataclass(frozen=True)
class Pipeline:
    """One stream as a replay drives it: no threads.

    `samples` is written to; `reader` is another connection to the same log, for reading only.
    """

    config: Config
    schema: Schema
    clock: Clock
    registry: Registry
    samples: SampleLog
    reader: SampleLog
    predictor: Predictor
    evaluator: CandidateEvaluator
    models: ModelStore
    rollout: Rollout
    recall: RegimeRecall
    scheduler: TrainingScheduler
    exclusion: AnomalyExclusion

    def resume(self, *, interrupted: bool) -> None:
        """Restore what an earlier process left: detectors, thresholds, the probation of the champion.

        `interrupted` says that a training run was cut off: it goes on, unless it was cancelled.
        """
        self.scheduler.triggers.interrupted = interrupted and not self.registry.get_value(CANCELLED)
        restore_drift(self.registry, self.predictor.drift)
        restore_anomalies(self.registry, self.predictor.anomalies)
        champion = self.predictor.champion.version
        self.recall.record_champion(champion)
        predecessor = self.models.unproven(champion)
        if predecessor is not None:
            self.predictor.resume(predecessor)


@dataclass(frozen=True)
class LivePipeline(Pipeline):
    """One stream as the daemon runs it: with its three threads and its label requests."""

    requester: LabelRequester
    worker: TrainingWorker
    serving: ServingWorker
    committer: GroupCommitter
    ingestor: Ingestor


@dataclass(frozen=True)
class Host:
    """What a stream runs on: a device, a replay, or a command beside the daemon.

    `events` hears what happens, `models` loads models, `client` is the trainer process. Without `conditions`
    training is held back by nothing but the time of day.
    """

    events: Events
    clock: Clock
    models: ModelReader
    client: TrainerClient
    conditions: ConditionsReader | None = None


def open_pipeline(
    config: Config, bundle: Bundle, registry: Registry, samples: SampleLog, reader: SampleLog, host: Host
) -> Pipeline:
    """Make the pipeline of one stream on an open state directory; its first model is loaded and serves.

    Raises ModelError when not even the bundle's own model can be loaded; ConfigError or UnavailableError when
    no model can be loaded the way the configuration asks for.
    """
    schema = config.stream.to_schema()
    regimes = stored_regimes(registry)
    holdout = judged_on(reader, config.stream.window_rules)
    evaluator = CandidateEvaluator(config, registry, holdout, host.models, regimes)
    models = ModelStore(config, registry, host.models, regimes, host.clock)
    recall = RegimeRecall(schema, regimes, reader, enabled=config.gate.recall)
    predictor = Predictor(
        config.serving,
        config.gate,
        schema,
        models.boot(bundle.inference_model, bundle.inference_sha256),
        config.drift.rules(),
        config.anomaly.rules(),
    )
    scheduler = TrainingScheduler(
        config,
        registry=registry,
        samples=reader,
        client=host.client,
        predictor=predictor,
        bundle=bundle.fingerprint,
        events=host.events,
        clock=host.clock,
        conditions=host.conditions,
    )
    return Pipeline(
        config=config,
        schema=schema,
        clock=host.clock,
        registry=registry,
        samples=samples,
        reader=reader,
        predictor=predictor,
        evaluator=evaluator,
        models=models,
        rollout=Rollout(evaluator, models, predictor, host.events, scheduler.triggers),
        recall=recall,
        scheduler=scheduler,
        exclusion=AnomalyExclusion(predictor.anomalies, samples),
    )


def go_live(
    pipeline: Pipeline, host: Host, *, session: Session, boot: int, watchdog: Watchdog, latencies: Latencies
) -> LivePipeline:
    """Add the threads of a daemon to a pipeline; none of them runs yet.

    `pipeline` and `host`: the stream, and what it runs on. `session`: samples and labels arrive over it and
    are acknowledged there. `boot`: which start of the daemon this is. `watchdog` watches the loops `ingest`
    and `serve`. `latencies` collects seconds from the arrival of a sample to its prediction.
    """
    config, schema, clock = pipeline.config, pipeline.schema, pipeline.clock
    worker = TrainingWorker(
        scheduler=pipeline.scheduler,
        rollout=pipeline.rollout,
        recall=pipeline.recall,
        exclusion=pipeline.exclusion,
        predictor=pipeline.predictor,
        samples=pipeline.samples,
        registry=pipeline.registry,
        events=host.events,
    )
    requester = LabelRequester(
        label_requests(config.labels, config.gate.holdout, boot), schema, clock, host.events
    )
    serving = ServingWorker(
        pipeline.predictor,
        batch=config.serving.batch,
        boot=boot,
        supervisor=worker,
        requester=requester,
        events=host.events,
        watchdog=watchdog,
        latencies=latencies,
    )
    notices = IngestNotices(schema, host.events, clock)
    decoder = SampleDecoder(
        config.stream,
        sample_codec(config.stream, clock=clock, publisher=session),
        AdmissionControl(config.stream.admission_rules(), schema.channels),
        clock,
        notices,
    )
    committer = GroupCommitter(
        config,
        pipeline.samples,
        broker=session,
        serving=serving,
        supervisor=worker,
        decoder=decoder,
        notices=notices,
        clock=clock,
        watchdog=watchdog,
    )
    ingestor = Ingestor(
        config,
        pipeline.samples,
        decoder=decoder,
        serving=serving,
        committer=committer,
        clock=clock,
        watchdog=watchdog,
    )
    return LivePipeline(
        **vars(pipeline),
        requester=requester,
        worker=worker,
        serving=serving,
        committer=committer,
        ingestor=ingestor,
    )


def label_requests(labels: LabelsConfig, holdout: float, seed: int) -> LabelRequests:
    """Make the rule that chooses samples whose labels are asked for; `holdout` is the gate's share."""
    return LabelRequests(
        labels.request_share,
        random=labels.request_random,
        holdout=holdout,
        per_day=labels.requests_per_day,
        seed=seed,
    )
