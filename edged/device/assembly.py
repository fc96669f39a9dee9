"""The parts of one running device, wired together: the one place that knows all of the serving side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edged import logs
from edged.clock import SystemClock
from edged.device.commands.answers import CommandAnswers
from edged.device.commands.authorisation import CommandAuthority
from edged.device.commands.dispatcher import CommandDispatcher
from edged.device.commands.inbox import CommandInbox
from edged.device.commands.labelling import LabelCommands
from edged.device.commands.models import ModelCommands
from edged.device.commands.pauses import PauseCommands
from edged.device.commands.queries import QueryCommands
from edged.device.commands.settings import SettingsCommands
from edged.device.commands.table import CommandTable
from edged.device.commands.training import TrainingCommands
from edged.device.commands.transfers import TransferService
from edged.device.commands.wipe import WipeCommands
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
from edged.device.paused_parts import PausedParts
from edged.device.pipeline import LivePipeline
from edged.device.promotion import Promoter
from edged.device.promotion.rollout import Rollout
from edged.device.reactions import Reactions
from edged.device.reporting.periodic import PeriodicReporter
from edged.device.reporting.status import StatusCollector
from edged.device.serving import Predictor, ServingWorker
from edged.device.serving.label_requester import LabelRequester
from edged.device.settings import Settings
from edged.device.startup import open_state as restore
from edged.device.startup.open_state import open_state
from edged.device.transfers.bundle_installer import BundleInstaller
from edged.domain.commands.running import RunningCommands
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
from edged.mqtt.client.command_connection import CommandConnection
from edged.mqtt.client.connection import in_flight
from edged.mqtt.client.session import Session
from edged.mqtt.codecs import label_codec, sample_codec
from edged.mqtt.topics import Topics, matches
from edged.storage.models.signatures import open_bundle
from edged.storage.sequence import Sequence

if TYPE_CHECKING:
    from pathlib import Path

    from edged.config import Config
    from edged.device.fleet_member.adapter import Membership
    from edged.device.integrations.sparkplug import EdgeNode
    from edged.device.web.front import WebServer
    from edged.domain.protocols import ServedModel
    from edged.host.wakeup_queue import WakeupQueue
    from edged.storage.models.bundles import Bundle

log = logs.get_logger("edged.device")

BREATH = 0.003  # seconds left to the serving thread between two pieces of loading a model


def _breathe() -> None:
    time.sleep(BREATH)


class Assembly:
    """All parts of one running device, put together.

    `endings` receives the name of the file when a database turns out to be damaged.
    """

    def __init__(self, config: Config, path: Path, notifier: Notifier, endings: WakeupQueue) -> None:
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
        self._make_pipeline()
        self._report(endings)
        self._take_commands()
        self._extend()
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
        self.installing = BundleInstaller(config, self.registry)
        self.updates = WeightUpdates(config, self._present_bundle, self.registry)
        self.outbound = OutboundRouter(
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
            publish=self.outbound.now,
            deliver=self.outbound.deliver,
            number=self._sequence,
            clock=self.clock,
            boot=self.boot,
            events=self.events,
        )
        self.events.add(self.reporter)
        self.events.add(self.outbound)

    def _present_bundle(self) -> Bundle:
        path = self.installing.present()
        if path is None or path == self._state.bundle.path:
            return self._state.bundle
        return open_bundle(path, self.config.model.keys)

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
        )
        self.learner.budget = restore.budget(self.registry)
        self.ingest = self._ingest()

    def _make_pipeline(self) -> None:
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

    def _report(self, endings: WakeupQueue) -> None:
        self.paused = PausedParts(self.registry)
        self.running = RunningCommands()
        self.settings = Settings(self.pipeline, self._path)
        self.status = StatusCollector(
            self.pipeline,
            session=self.session,
            outbound=self.outbound,
            vitals=VitalsReader(self.config.storage.dir, child=lambda: self.learner.process.pid),
            recovery=self.recovery,
            boot=self.boot,
            paused=self.paused,
            running=self.running,
            extensions=self.extensions,
        )
        self.periodic_reporter = PeriodicReporter(
            self.pipeline,
            status=self.status,
            settings=self.settings,
            reporter=self.reporter,
            sequence=self._sequence,
            notifier=self.notifier,
            endings=endings,
            timetable=self.timetable,
            events=self.events,
        )
        self.events.add(self.periodic_reporter)

    def _take_commands(self) -> None:
        config, pipeline, events = self.config, self.pipeline, self.events
        connection = CommandConnection(
            config.mqtt,
            self.session,
            self.topics.requests,
            client_id=f"{config.mqtt.client_id or f'edged-{config.device.id}'}-commands",
        )
        answers = CommandAnswers(self.session, self.topics, connection, self.running)
        self.inbox = CommandInbox(config.commands, self.clock, answers, self.running)
        self.pauses = PauseCommands(
            pipeline,
            paused=self.paused,
            outbound=self.outbound,
            connection=connection,
            inbox=self.inbox,
            events=events,
        )
        self.transfers = TransferService(
            self.config,
            clock=self.clock,
            registry=self.registry,
            session=self.session,
            topics=self.topics,
            publishing=self.outbound,
            updates=self.updates,
            learning=self.learning,
            succession=self.succession,
            process=self.learner.process,
            installing=self.installing,
            events=self.events,
        )
        table = CommandTable(
            training=TrainingCommands(pipeline, status=self.status, running=self.running, events=events),
            models=ModelCommands(pipeline, events),
            labels=LabelCommands(pipeline),
            pauses=self.pauses,
            settings=SettingsCommands(self.settings, events),
            wipe=WipeCommands(pipeline, events),
            queries=QueryCommands(pipeline, self.status, self.session),
            transfers=self.transfers,
        )
        self.handlers = table.handlers
        self.dispatcher = CommandDispatcher(
            self.handlers,
            config=config.commands,
            clock=self.clock,
            journal=self.registry,
            inbox=self.inbox,
            answers=answers,
            authority=CommandAuthority(config.device.id, config.commands, self.registry, self.clock),
            running=self.running,
        )

    def _extend(self) -> None:
        discovery = HomeAssistantDiscovery(
            self.config,
            session=self.session,
            registry=self.registry,
            commands=self.handlers,
            scheduler=self.timetable,
        )
        membership = self._membership()
        found = (discovery, self.transfers, self._edge_node(), membership, self._web(membership))
        for extension in found:
            if extension is not None:
                self.extensions.append(extension)
                self.events.add(extension)

    def _web(self, membership: Membership | None) -> WebServer | None:
        if self.config.web is None:
            return None
        from edged.device.web.front import WebServer

        post = None if membership is None else membership.post
        return WebServer(self.config.web, self.pipeline, self.status, self.inbox, post)

    def _edge_node(self) -> EdgeNode | None:
        if self.config.sparkplug is None:
            return None
        from edged.device.integrations.sparkplug import EdgeNode

        return EdgeNode(
            self.config,
            registry=self.registry,
            inbox=self.inbox,
            topics=self.topics,
            commands=self.handlers,
            clock=self.clock,
        )

    def _membership(self) -> Membership | None:
        if self.config.fleet is None:
            return None
        from edged.device.fleet_member.adapter import Membership, RoundExecutor

        work = RoundExecutor(
            self.config,
            self.config.fleet,
            clock=self.clock,
            registry=self.registry,
            learner=self.learner,
            learning=self.learning,
            succession=self.succession,
            present_bundle=self._present_bundle,
            labelled_since=self._reader.labelled_since,
        )
        return Membership(
            self.config,
            self.config.fleet,
            work,
            clock=self.clock,
            registry=self.registry,
            session=self.session,
            worker=self.learning,
            events=self.events,
        )

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
