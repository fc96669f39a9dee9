"""Everything of one stream that serves and learns; nothing of the device it runs on.

A sample goes from `ingestor` to `serving`, whose `predictor` answers it with the champion. A label joins its
sample in `ingestor` and is judged by `predictor`; `worker` lets `scheduler` start a training run when one is
due, and `rollout` brings its candidate before the gate of `promoter` and into service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import Config
    from edged.device.ingest import Ingestor
    from edged.device.learning.regime_recall import RegimeRecall
    from edged.device.learning.scheduler import TrainingScheduler
    from edged.device.learning.worker import TrainingWorker
    from edged.device.promotion import Promoter
    from edged.device.promotion.rollout import Rollout
    from edged.device.serving import Predictor, ServingWorker
    from edged.device.serving.label_requester import LabelRequester
    from edged.domain.stream.schema import Schema
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
    promoter: Promoter
    rollout: Rollout
    recall: RegimeRecall
    scheduler: TrainingScheduler


@dataclass(frozen=True)
class LivePipeline(Pipeline):
    """One stream as the daemon runs it: with its three threads and its label requests."""

    requester: LabelRequester
    serving: ServingWorker
    worker: TrainingWorker
    ingestor: Ingestor
