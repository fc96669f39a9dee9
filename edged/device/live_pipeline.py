"""One stream as the daemon runs it: the pipeline with its threads."""

from __future__ import annotations

from edged.device.ingest.committer import GroupCommitter
from edged.device.ingest.decoder import SampleDecoder
from edged.device.ingest.ingestor import Ingestor
from edged.device.ingest.joiner import Joiner
from edged.device.ingest.notices import IngestNotices
from edged.device.learning.worker import TrainingWorker
from edged.device.pipeline import Host, Pipeline, SharedThreads, label_requests
from edged.device.serving.label_requester import LabelRequester
from edged.device.serving.worker import ServingWorker
from edged.device.startup.open_state import OpenState
from edged.domain.judging.latencies import Latencies
from edged.domain.stream.admission import AdmissionControl
from edged.host.systemd import Watchdog
from edged.mqtt.client.session import Session, StreamSession
from edged.mqtt.codecs import sample_codec


class LivePipeline(Pipeline):
    """One stream as the daemon runs it: with loops, none of which runs yet, and label requests.

    Samples and labels arrive over `session` and are acknowledged there. `watchdog` watches the loops `ingest`
    and `serve`. `latencies` collects seconds from the arrival of a sample to its prediction.
    """

    def __init__(
        self,
        state: OpenState,
        host: Host,
        *,
        session: Session | StreamSession,
        watchdog: Watchdog,
        latencies: Latencies,
    ) -> None:
        config = state.config
        super().__init__(config, state.bundle, state.registry, state.samples, state.reader, host)
        self.worker = TrainingWorker(
            scheduler=self.scheduler,
            rollout=self.rollout,
            exclusion=self.exclusion,
            samples=self.samples,
            registry=self.registry,
        )
        requests = label_requests(config.labels, config.gate.holdout, state.boot)
        self.requester = LabelRequester(requests, self.schema, self.clock, host.events)
        self.serving = ServingWorker(
            self.predictor,
            batch=config.serving.constants.batch,
            boot=state.boot,
            supervisor=self.worker,
            requester=self.requester,
            events=host.events,
            watchdog=watchdog,
            latencies=latencies,
        )
        notices = IngestNotices(self.schema, host.events, self.clock)
        admission = AdmissionControl(config.stream.admission_rules(), config.stream.watched)
        decoder = SampleDecoder(
            config.stream,
            sample_codec(config.stream, clock=self.clock, publisher=session),
            admission,
            self.clock,
            notices,
        )
        self.committer = GroupCommitter(
            config,
            self.samples,
            broker=session,
            serving=self.serving,
            supervisor=self.worker,
            decoder=decoder,
            notices=notices,
            clock=self.clock,
            watchdog=watchdog,
        )
        self.ingestor = Ingestor(
            config,
            self.samples,
            decoder=decoder,
            joiner=Joiner(config.stream, admission, self.clock, notices),
            serving=self.serving,
            committer=self.committer,
            clock=self.clock,
            watchdog=watchdog,
        )

    def start(self, threads: SharedThreads | None) -> None:
        """Begin to take in samples and to answer, on `threads` where several streams share them."""
        if threads is None:
            self.serving.start()
            self.ingestor.start()
        else:
            self.serving.start(threads.serve, threads.ingest)
            self.ingestor.start(threads.ingest)
