"""The parts of one running stream, put together: the one place that knows them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged import logs
from edged.config.commands import InstallConfig
from edged.device.commands.answers import CommandAnswers
from edged.device.commands.device import capabilities, pong, set_log_level
from edged.device.commands.dispatcher import CommandDispatcher, command_authority
from edged.device.commands.inbox import CommandInbox
from edged.device.commands.keys import KeyCommands
from edged.device.commands.labelling import ClassCommands, LabelCommands, LabelReviewCommands
from edged.device.commands.models import ModelCommands
from edged.device.commands.training import TrainingCommands
from edged.device.commands.transfers import TransferCommands
from edged.device.commands.wipe import WipeCommands
from edged.device.device_parts import DeviceParts
from edged.device.events import Events, Extension
from edged.device.integrations import ANNOUNCED
from edged.device.learning.conditions import ConditionsReader
from edged.device.learning.label_reviews import LabelReviews
from edged.device.learning.trainer_client import TrainerClient
from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.publisher import OutboundRouter
from edged.device.outbound.reporter import Reporter, StreamReporter
from edged.device.outbound.weight_updates import WeightUpdates
from edged.device.pipeline import Host
from edged.device.reporting.audit import AuditTrail
from edged.device.reporting.periodic import Endings, PeriodicReporter
from edged.device.reporting.status import LearningSummary, StatusCollector
from edged.device.settings import Pauses, Settings
from edged.device.startup.first_opening import FirstOpenings
from edged.device.startup.open_state import OpenState
from edged.device.transfers.installer import TransferInstaller
from edged.device.transfers.receiver import TransferReceiver
from edged.domain.commands.tasks import Handler, RunningCommands
from edged.domain.judging.latencies import Latencies
from edged.domain.training.guards import FlashWear
from edged.engines.inference import InferenceReader
from edged.host.scheduler import Timetable
from edged.host.systemd import LoopWatch
from edged.host.vitals import VitalsReader
from edged.mqtt.client.session import StreamSession
from edged.mqtt.topics import Topics
from edged.mqtt.weight_encoding import MAX_UPDATE_BYTES
from edged.storage.journal.journal import Sequence
from edged.storage.journal.transfers import TransferStaging
from edged.storage.models.bundle_archive import ActiveBundle, InstalledBundles

if TYPE_CHECKING:
    from edged.device.fleet_member.local_rounds import LocalRounds
    from edged.device.fleet_member.member import Member
    from edged.device.integrations.home_assistant import HomeAssistantDiscovery
    from edged.device.integrations.sparkplug import EdgeNode, StreamOfNode
    from edged.device.web.front import WebServer

log = logs.get_logger("edged.device")

BREATH = 0.003  # seconds left to the serving thread between two pieces of loading a model


class Assembly:
    """All parts of one stream, put together: of the only one of a device, or of one of several.

    `state` is its open state directory, `parts` are those that all streams share. `endings` receives the name
    of the file when a database turns out to be damaged.
    """

    def __init__(self, state: OpenState, parts: DeviceParts, first: FirstOpenings, endings: Endings) -> None:
        self._state, self.parts, self.first = state, parts, first
        self.clock, self.session = parts.clock, parts.session
        self.config, self.recovery, self.boot = state.config, state.recovery, state.boot
        self.registry, self.samples = state.registry, state.samples
        with self.recovery.opening("the registry"):
            self._sequence = Sequence(self.registry)
        self.events = Events() if self.config.name else parts.events
        self.extensions: list[Extension] = []
        name = self.config.name
        self.timetable = Timetable(parts.timetable, name) if name else parts.timetable
        self.watchdog = LoopWatch() if self.config.name else parts.watchdog
        with self.recovery.opening("the outbox"):
            self._connect()
        with self.recovery.opening("the pipeline"):
            self.pipeline = self._open_pipeline()
            self.reviews = self._label_reviews()
            self._report(endings)
        with self.recovery.opening("the commands"):
            self._create_dispatcher()
        with self.recovery.opening("the extensions"):
            self._extend()

    # ---- wiring ----------------------------------------------------------------------------

    def _connect(self) -> None:
        config = self.config
        self.topics = Topics(config.topic_root)
        self.stream_session = StreamSession(self.session, self.parts.stream_sessions) if config.name else None
        self.installed = InstalledBundles(config.storage.dir)
        self.bundles = ActiveBundle(self._state.bundle, self.installed, self.registry, config.model.keys)
        self.updates = WeightUpdates(config, self.bundles, self.registry)
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
        kind = StreamReporter if config.name else Reporter
        self.reporter = kind(
            topics=self.topics,
            outbound=self.outbound,
            number=self._sequence,
            clock=self.clock,
            boot=self.boot,
            events=self.events,
        )
        self.events.add(LearningSummary(self.registry, self.clock))
        self.events.add(self.reporter)
        self.events.add(self.outbound)

    def _open_pipeline(self) -> LivePipeline:
        """The stream of this device, with its threads."""
        config, latencies = self.config, Latencies()
        rate = config.training.max_write_rate
        wear = None if rate is None else FlashWear(rate)
        host = Host(
            self.events,
            self.clock,
            InferenceReader(
                providers=config.serving.provider,
                pause=BREATH,
                warm=True,
            ),
            TrainerClient(config, self.bundles, slot=self.parts.slot),
            ConditionsReader(
                self.clock, VitalsReader(config.storage.dir), latencies, self.parts.board_watch, wear
            ),
        )
        pipeline = LivePipeline(
            self._state,
            host,
            session=self.stream_session or self.session,
            watchdog=self.watchdog,
            latencies=latencies,
        )
        pipeline.resume(self._state.unfinished)
        for version in pipeline.models.unusable:
            serves = pipeline.predictor.champion.version
            self.recovery.record(f"model {version} cannot be used: model {serves} serves")
        return pipeline

    def _label_reviews(self) -> LabelReviews:
        pipeline = self.pipeline
        return LabelReviews(
            worker=pipeline.worker,
            client=pipeline.scheduler.client,
            samples=pipeline.reader,
            registry=self.registry,
            schema=pipeline.schema,
            clock=self.clock,
            boot=self.boot,
        )

    def _report(self, endings: Endings) -> None:
        self.audit = AuditTrail(self.registry, self.config.storage.dir)
        self.pauses = Pauses(self.pipeline, self.outbound, self.events)
        self.running = RunningCommands()
        self.settings = Settings(self.pipeline, self.parts.path, self.events)
        self.status = StatusCollector(
            self.pipeline,
            session=self.session,
            outbound=self.outbound,
            vitals=self.parts.vitals,
            recovery=self.recovery,
            boot=self.boot,
            paused=self.pauses,
            running=self.running,
            extensions=self.extensions,
        )
        self.periodic_reporter = PeriodicReporter(
            self.pipeline,
            status=self.status,
            settings=self.settings,
            reporter=self.reporter,
            sequence=self._sequence,
            notifier=None if self.config.name else self.parts.notifier,
            endings=endings,
            timetable=self.timetable,
            events=self.events,
        )
        self.events.add(self.periodic_reporter)

    def _create_dispatcher(self) -> None:
        config, pipeline, events = self.config, self.pipeline, self.events
        answers = CommandAnswers(
            self.session,
            self.topics,
            self.running,
            config.commands.answer_to,
            journal=self.registry,
            clock=self.clock,
        )
        authority = command_authority(
            config.device.id,
            config.commands,
            self.registry,
            self.clock,
            root=config.mqtt.root,
            stream=config.name,
            makers=config.model.keys,
            trust=self.first.trust,
        )
        self.inbox = CommandInbox(self.clock, answers, self.running, authority)
        staging = TransferStaging(
            config.storage.dir,
            max_bytes=max(MAX_UPDATE_BYTES, (config.install or InstallConfig()).max_bytes),
            clock=self.clock,
        )
        installer = TransferInstaller(pipeline, staging, self.first, self.installed, self.bundles, events)
        self.transfers = TransferReceiver(
            config, self.session, self.topics, staging, installer, pipeline.worker
        )
        self.handlers = self._handlers()
        self.dispatcher = CommandDispatcher(
            self.handlers,
            config=config.commands,
            clock=self.clock,
            journal=self.registry,
            answers=answers,
            authority=authority,
            running=self.running,
        )

    def _handlers(self) -> dict[str, Handler]:
        """The handlers of `request/<command>`, by name."""
        config, pipeline, events = self.config, self.pipeline, self.events
        training = TrainingCommands(pipeline, status=self.status, running=self.running, events=events)
        models, pauses, settings = ModelCommands(pipeline, events), self.pauses, self.settings
        transfers = TransferCommands(config, self.transfers, self.updates, self.outbound, pipeline.rollout)
        keys, labels = KeyCommands(config, self.first.trust), LabelCommands(pipeline)
        classes, reviews = ClassCommands(pipeline), LabelReviewCommands(self.reviews)
        handlers: dict[str, Handler] = {
            "train": Handler(training.train, "later", resume=training.resume),
            "cancel": Handler(training.cancel),
            "checkpoint": Handler(training.checkpoint, "later"),
            "accept": Handler(training.accept),
            "drift.reset": Handler(training.reset_drift),
            "pause": Handler(pauses.pause),
            "resume": Handler(pauses.resume),
            "promote": Handler(models.promote),
            "rollback": Handler(models.roll_back),
            "pin": Handler(models.pin),
            "unpin": Handler(models.unpin),
            "evaluate": Handler(models.evaluate, "aside"),
            "export": Handler(models.export, "aside"),
            "label": Handler(labels.label, "again"),
            "label.undo": Handler(labels.undo, "again"),
            "labels.suspects": Handler(reviews.suspects),
            "labels.confirm": Handler(reviews.confirm),
            "class.add": Handler(classes.add, "again"),
            "class.remove": Handler(classes.remove, "again"),
            "class.merge": Handler(classes.merge, "again"),
            "wipe": Handler(WipeCommands(pipeline, self.outbound, events).wipe, "aside"),
            "config.get": Handler(settings.get),
            "config.set": Handler(settings.set),
            "logs.level": Handler(set_log_level),
            "status": Handler(lambda _: self.status.status().to_json()),
            "ping": Handler(lambda _: pong(self.clock)),
            "capabilities": Handler(lambda _: capabilities(pipeline, self.session, handlers)),
            "weights.get": Handler(transfers.get_weights),
            "weights.apply": Handler(transfers.apply_weights),
            "model.install": Handler(transfers.install_model),
            "bundle.install": Handler(transfers.install_bundle),
            "keys.rotate": Handler(keys.rotate),
            "keys.revoke": Handler(keys.revoke),
        }
        if not config.name:  # of several streams: the device has it
            replacement = self.parts.replacement
            handlers["config.replace"] = Handler(replacement.replace, "later", resume=replacement.resume)
        return handlers

    def _extend(self) -> None:
        self.discovery = self._discovery()
        membership = self._membership()
        found = (
            self.discovery,
            self.transfers,
            self.reviews,
            self._edge_node(),
            membership,
            self._web(membership),
        )
        for extension in found:
            if extension is not None:
                self.extensions.append(extension)
                self.events.add(extension)

    def _discovery(self) -> HomeAssistantDiscovery | None:
        """Where it is turned off, too, if something has been announced: that is taken back."""
        announced = self.registry.get_value(ANNOUNCED) is not None
        if self.config.discovery is None and not announced:
            return None
        from edged.device.integrations.home_assistant import HomeAssistantDiscovery

        return HomeAssistantDiscovery(
            self.pipeline,
            session=self.session,
            outbound=self.outbound,
            commands=self.handlers,
            scheduler=self.timetable,
        )

    def _web(self, membership: Member | LocalRounds | None) -> WebServer | None:
        if self.config.web is None or self.config.name:  # of several streams: the device has it
            return None
        from edged.device.fleet_member.local_rounds import LocalRounds
        from edged.device.web.front import WebParts, WebServer

        rounds = membership if isinstance(membership, LocalRounds) else None
        return WebServer(
            {"": WebParts(self.config.web, self.pipeline, self.status, self.inbox, rounds, self.reviews)}
        )

    def _edge_node(self) -> EdgeNode | StreamOfNode | None:
        if self.config.sparkplug is None:
            return None
        from edged.device.integrations.sparkplug import EdgeNode, StreamOfNode

        if self.parts.edge_node is not None:
            return StreamOfNode(
                self.config,
                self.parts.edge_node,
                inbox=self.inbox,
                topics=self.topics,
                commands=self.handlers,
            )
        return EdgeNode(
            self.config,
            registry=self.registry,
            inbox=self.inbox,
            topics=self.topics,
            commands=self.handlers,
            clock=self.clock,
        )

    def _membership(self) -> Member | LocalRounds | None:
        if self.config.fleet is None:
            return None
        from edged.device.fleet_member.member import membership

        return membership(self.pipeline, self.config.fleet, self.bundles, self.session, self.events)
