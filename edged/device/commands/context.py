"""The parts of a running device that commands reach into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from edged.clock import Clock
    from edged.config import Config
    from edged.device.ingest import Ingestor
    from edged.device.learning.regime_recall import RegimeRecall
    from edged.device.learning.scheduler import TrainingScheduler
    from edged.device.learning.worker import TrainingWorker
    from edged.device.outbound.publisher import OutboundRouter
    from edged.device.promotion import Promoter
    from edged.device.promotion.rollout import Rollout
    from edged.device.reporting.status import StatusCollector
    from edged.device.serving import Predictor, ServingWorker
    from edged.domain.commands.tasks import Task
    from edged.mqtt.client.session import Session
    from edged.mqtt.topics import Topics
    from edged.storage.models.registry import Registry
    from edged.storage.samples.log import SampleLog


@dataclass(frozen=True)
class Parts:
    """All of them, as the daemon has wired them.

    `path` is the configuration's file; `samples` is written to, `reader` is only read from; `tasks` gives the
    commands under way, `publish_states` tells what has changed, `notify` of an event.
    """

    config: Config
    path: Path
    clock: Clock
    topics: Topics
    session: Session
    publishing: OutboundRouter
    registry: Registry
    samples: SampleLog
    reader: SampleLog
    ingest: Ingestor
    server: Predictor
    serving: ServingWorker
    learner: TrainingScheduler
    learning: TrainingWorker
    promoter: Promoter
    succession: Rollout
    recall: RegimeRecall
    selfreport: StatusCollector
    publish_states: Callable[[], None]
    notify: Callable[[str, dict[str, Any]], None]
    tasks: Callable[[], list[Task]]
    receive: Callable[[Any], None]
