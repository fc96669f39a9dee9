"""The parts of one running device, wired together: the one place that knows all of the serving side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edged import logs
from edged.clock import SystemClock
from edged.device.commands import CommandTable, LabelCommands, Parts, TransferCommands
from edged.device.commands.authorisation import authorisation
from edged.device.commands.dispatcher import CommandDispatcher
from edged.device.events import Events, Extension
from edged.device.ingest import Ingestor
from edged.device.integrations.home_assistant import HomeAssistantDiscovery
from edged.device.learning.conditions import BoardWatch, ClockWatch, ConditionsReader
from edged.device.learning.regime_recall import RegimeRecall
from edged.device.learning.scheduler import SETBACKS, TrainingScheduler
from edged.device.learning.worker import CANCELLED, TrainingWorker
from edged.device.outbound.publisher import OutboundRouter
from edged.device.outbound.reporter import Reporter, will_payload
from edged.device.outbound.weight_updates import WeightUpdates
from edged.device.pipeline import LivePipeline
from edged.device.promotion import Promoter
from edged.device.promotion.rollout import Rollout
from edged.device.reactions import Reactions
from edged.device.reporting.periodic import PeriodicReporter
from edged.device.reporting.status import StatusCollector
from edged.device.serving import Predictor, ServingWorker
from edged.device.serving.label_requester import LabelRequester
from edged.device.startup import open_state as restore
from edged.device.startup.open_state import open_state
from edged.device.transfers.installer import TransferInstaller
from edged.device.transfers.receiver import TransferReceiver
from edged.domain.judging.label_requests import LabelRequests
from edged.domain.judging.overlap import judged_on
from edged.domain.model_files import INT8
from edged.domain.stream.admission import AdmissionControl
from edged.domain.stream.windowing import Windowing
from edged.engines.inference import InferenceModel
from edged.host.board import BoardReader
from edged.host.cpu_affinity import fitting
from edged.host.scheduler import Scheduler
from edged.host.systemd import Notifier, Watchdog
from edged.host.vitals import VitalsReader
from edged.mqtt.client.connection import in_flight
from edged.mqtt.client.session import Session
from edged.mqtt.codecs import label_codec, sample_codec
from edged.mqtt.topics import Topics, matches
from edged.storage.journal.transfers import TransferStaging
from edged.storage.models.installed_bundles import ActiveBundle, InstalledBundles
from edged.storage.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.config import Config
    from edged.device.fleet_member.membership import Membership
    from edged.device.integrations.sparkplug import EdgeNode
    from edged.device.web.front import WebServer
    from edged.domain.protocols import ServedModel

log = logs.get_logger("edged.device")

BREATH = 0.003  # seconds left to the serving thread between two pieces of loading a model


def _breathe() -> None:
    time.sleep(BREATH)


class Assembly:
    """All parts of one running device, put together.

    `give_up` is called, with the name of the file, when a database turns out to be damaged.
    """

    def __init__(
        self, config: Config, path: Path, notifier: Notifier, give_up: Callable[[str], None]
    ) -> None:
        self._path = path
        self.clock = SystemClock()
        self.notifier = notifier
        self._state = state = open_state(config, self.clock)
        self.config, self.recovery, self.boot = state.config, state.recovery, state.boot
        self.schema = self.config.stream.to_schema()
        self.registry, self.samples, self._reader = state.registry, state.samples, state.reader
        self._sequence = Sequence(self.registry)
        self.events = Events()
        self.extensions: list[Extension] = []
        self.on = Reactions(self)
        self.timetable = Scheduler(self.clock)
        self.watchdog = Watchdog(notifier, ("ingest", "serve"))
        self._connect()
        self._judge_and_serve()
        self._learn()
        self._report(give_up)
        self.learner.triggers.interrupted = state.interrupted and not self.registry.get_value(CANCELLED)

    # ---- wiring ----------------------------------------------------------------------------

    def _connect(self) -> None:
        config = self.config
        self.topics = Topics(config.topic_root)
        self.session = Session(
            config.mqtt,
            client_id=config.mqtt.client_id or f"edged-{config.device.id}",
            will=(self.topics.status, will_payload(self.boot), True),
            on_online=self.on.online,
            on_offline=self.events.connection_changed,
        )
        self.installed = InstalledBundles(config.storage.dir)
        self.bundles = ActiveBundle(self._state.bundle, self.installed, self.registry, config.model.keys)
        self.updates = WeightUpdates(config, self.bundles, self.registry)
        self.publishing = OutboundRouter(
            config,
            topics=self.topics,
            session=self.session,
            registry=self.registry,
            updates=self.updates,
            clock=self.clock,
            boot=self.boot,
            number=self._sequence,
        )
        self.reporter = Reporter(
            topics=self.topics,
            publish=self.publishing.now,
            deliver=self.publishing.deliver,
            number=self._sequence,
            clock=self.clock,
            boot=self.boot,
            events=self.events,
        )
        self.events.add(self.reporter)
        self.events.add(self.publishing)

    def _judge_and_serve(self) -> None:
        config = self.config
        self.promoter = Promoter(
            config=config.gate,
            schema=self.schema,
            registry=self.registry,
            holdout=judged_on(self._reader, config.stream.window_rules),
            load_model=self._load_model,
            clock=self.clock,
            keep_models=config.storage.keep_models,
            staging=config.storage.dir / "candidates",
            int8=config.serving.quantise == INT8,
            breathe=_breathe,
            regimes=restore.regimes(self.registry),
        )
        self.recall = RegimeRecall(
            self.schema, self.promoter.regimes, self._reader, enabled=config.gate.recall
        )
        self.promoter.bank = self.recall.bank
        self.server = Predictor(
            config.serving,
            config.gate,
            self.schema,
            self._first_model(),
            config.drift.rules(),
            config.anomaly.rules(),
        )
        restore.restore_drift(self.registry, self.server.drift)
        restore.restore_anomalies(self.registry, self.server.anomalies)
        self.recall.crowned(self.server.champion.version)
        predecessor = self.promoter.unproven(self.server.champion.version)
        if predecessor is not None:
            self.server.resume(predecessor)
        self.succession = Rollout(self.promoter, self.server, self.events.event, self.on.rest)
        self.server.rescue = self.succession.rescue
        self.asking = self._asking()
        self.serving = self._serving_loop()

    def _learn(self) -> None:
        config = self.config
        self.board_watch = BoardWatch(self.clock, BoardReader().read, self.events.event)
        self.clock_watch = ClockWatch(self.clock, self.events.event)
        self.learner = TrainingScheduler(
            config,
            clock=self.clock,
            labelled_since=self._reader.labelled_since,
            next_offset=self._reader.next_offset,
            begin=self.registry.begin_run,
            end=self.registry.end_run,
            notify=self.events.event,
            consumed=int(self.registry.get_value("consumed") or 0),
            keep=lambda values: self.registry.set_value(SETBACKS, values),
            kept=self.registry.get_value(SETBACKS),
            bundle=self._state.bundle.fingerprint,
            conditions=ConditionsReader(
                self.clock,
                VitalsReader(config.storage.dir),
                self.serving.latencies,
                lambda: self.board_watch.reasons,
                self.on.worn,
            ).read,
            error=self.server.live_error,
            bundles=self.bundles,
        )
        self.learner.budget = restore.budget(self.registry)
        self.ingest = self._ingest()

    def _report(self, give_up: Callable[[str], None]) -> None:
        config = self.config
        self.selfreport = StatusCollector(
            clock=self.clock,
            boot=self.boot,
            samples=self.samples,
            registry=self.registry,
            server=self.server,
            serving=self.serving,
            learner=self.learner,
            promoter=self.promoter,
            ingest=self.ingest,
            session=self.session,
            vitals=VitalsReader(config.storage.dir, child=lambda: self.learner.process.pid),
            requested=lambda: self.asking.requested,
            outbox=self.publishing.outbox,
            recovery=self.recovery,
            paused=self.on.paused,
            commands=lambda: dict(self.control.counts),
            extensions=self.extensions,
        )
        self.telling = PeriodicReporter(
            settings=self.on.settings,
            selfreport=self.selfreport,
            reporter=self.reporter,
            registry=self.registry,
            samples=self.samples,
            sequence=self._sequence,
            notifier=self.notifier,
            clock=self.clock,
            give_up=give_up,
            scheduler=self.timetable,
            events=self.events,
        )
        self.events.add(self.telling)
        self.learning = TrainingWorker(
            learner=self.learner,
            succession=self.succession,
            samples=self.samples,
            registry=self.registry,
            recall=self.recall,
            drift_state=self.server.drift_state,
            publish_states=self.events.states_changed,
            promoted=self.events.champion_changed,
            anomalies=self.server.anomalies,
        )
        self._steer()

    def _steer(self) -> None:
        self.pipeline = LivePipeline(
            config=self.config,
            schema=self.schema,
            clock=self.clock,
            registry=self.registry,
            samples=self.samples,
            reader=self._reader,
            predictor=self.server,
            promoter=self.promoter,
            rollout=self.succession,
            recall=self.recall,
            scheduler=self.learner,
            requester=self.asking,
            serving=self.serving,
            worker=self.learning,
            ingestor=self.ingest,
        )
        parts = Parts(
            config=self.config,
            path=self._path,
            clock=self.clock,
            topics=self.topics,
            session=self.session,
            publishing=self.publishing,
            registry=self.registry,
            samples=self.samples,
            reader=self._reader,
            ingest=self.ingest,
            server=self.server,
            serving=self.serving,
            learner=self.learner,
            learning=self.learning,
            promoter=self.promoter,
            succession=self.succession,
            recall=self.recall,
            selfreport=self.selfreport,
            publish_states=self.events.states_changed,
            notify=self.events.event,
            tasks=lambda: self.control.tasks,
            receive=self.on.command,
        )
        labelling = LabelCommands(
            self.schema, self.samples, self.ingest, self.serving, self.learning, self.clock
        )
        staging = TransferStaging(
            self.config.storage.dir,
            max_bytes=max(self.config.weights.max_bytes, self.config.install.max_bytes),
            expire=self.config.weights.expire,
            clock=self.clock,
        )
        installer = TransferInstaller(self.pipeline, staging, self.installed, self.events)
        transfers = TransferReceiver(self.config, self.session, self.topics, staging, installer)
        arrivals = TransferCommands(
            self.config, transfers, self.updates, self.publishing, self.succession
        ).commands()
        self.steering = CommandTable(parts, labelling, arrivals)
        self.control = CommandDispatcher(
            self.steering.commands(),
            config=self.config.commands,
            clock=self.clock,
            journal=self.registry,
            answer=self.steering.answer,
            acknowledge=self.steering.pauses.second_line.acknowledge,
            check=self.steering.check,
            progress=self.steering.progress,
            authorise=authorisation(self.config, self.registry, self.clock),
        )
        self.discovery = HomeAssistantDiscovery(
            self.config,
            session=self.session,
            registry=self.registry,
            commands=self.steering.commands(),
            scheduler=self.timetable,
        )
        membership = self._membership()
        optional = (self._edge_node(), membership, self._web(parts, membership))
        self._extend(self.discovery, transfers, *(part for part in optional if part is not None))

    def _extend(self, *extensions: Extension) -> None:
        for extension in extensions:
            self.extensions.append(extension)
            self.events.add(extension)

    def _web(self, parts: Parts, membership: Membership | None) -> WebServer | None:
        if self.config.web is None:
            return None
        from edged.device.web.front import WebServer

        return WebServer(self.config.web, parts, None if membership is None else membership.local_transport)

    def _edge_node(self) -> EdgeNode | None:
        if self.config.sparkplug is None:
            return None
        from edged.device.integrations.sparkplug import EdgeNode

        return EdgeNode(
            self.config,
            registry=self.registry,
            control=self.control,
            topics=self.topics,
            commands=self.steering.commands(),
            clock=self.clock,
        )

    def _membership(self) -> Membership | None:
        if self.config.fleet is None:
            return None
        from edged.device.fleet_member.membership import Membership

        return Membership(self.pipeline, self.config.fleet, self.bundles, self.session, self.events)

    def _first_model(self) -> ServedModel:
        bundle = self._state.bundle
        served = self.promoter.boot(bundle.inference_model, bundle.inference_sha256)
        for version in self.promoter.unusable:
            self.recovery.note(f"model {version} cannot be used: model {served.version} serves")
        return served

    def _load_model(self, path: Path) -> InferenceModel:
        model = InferenceModel(
            path,
            threads=fitting(self.config.serving.threads),
            breathe=_breathe,
            providers=self.config.serving.provider,
        )
        model.warm_up()
        return model

    def _asking(self) -> LabelRequester:
        labels = self.config.labels
        rule = LabelRequests(
            labels.request_share,
            random=labels.request_random,
            holdout=self.config.gate.holdout,
            per_day=labels.requests_per_day,
            seed=self.boot,
        )
        return LabelRequester(rule, self.schema, self.clock, self.events.event)

    def _serving_loop(self) -> ServingWorker:
        return ServingWorker(
            self.server,
            schema=self.schema,
            batch=self.config.serving.batch,
            publish=self.on.predicted,
            sample_id=self.on.sample_id,
            on_answered=self.on.answered,
            on_outcome=self.on.probation_ended,
            on_failed=self.on.champion_failed,
            on_drift=self.on.drifted,
            on_fall=self.on.fallen,
            on_anomaly=lambda change: self.events.event("anomaly", change.as_dict()),
            beat=lambda: self.watchdog.beat("serve"),
        )

    def _ingest(self) -> Ingestor:
        stream = self.config.stream
        codec = sample_codec(stream, now=self.clock.now, publish=self.session.publish)
        label_filter = stream.label_topic
        forecast = (stream.forecast_columns, stream.horizon) if self.schema.task == "forecast" else None
        return Ingestor(
            config=self.config.storage,
            schema=self.schema,
            unacknowledged=self.config.mqtt.receive_maximum,
            store=self.samples,
            clock=self.clock,
            decode=codec.decode,
            decode_label=label_codec(stream).decode if label_filter else None,
            is_label=(lambda topic: matches(label_filter, topic)) if label_filter else (lambda _: False),
            acknowledge=self.session.ack,
            redeliver=self.session.drop,
            on_batch=self.on.read,
            on_labels=self.on.labelled,
            on_committed=self.on.committed,
            on_rejected=self.on.rejected,
            beat=lambda: self.watchdog.beat("ingest"),
            on_problem=self.events.problem_changed,
            forecast=forecast,
            join_expiry=stream.join_expiry,
            intake=AdmissionControl(stream.intake_rules(), self.schema.channels),
            windowing=None if stream.window is None else Windowing(stream.window.rules(), stream.width),
            notice=self.on.noticed,
            in_flight=lambda: in_flight(self.config.mqtt, self.session.protocol),
        )
