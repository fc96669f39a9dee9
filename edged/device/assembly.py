"""The parts of one running device, wired together: the one place that knows all of the serving side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged import logs
from edged.clock import SystemClock
from edged.device.commands import CommandTable, LabelCommands, Parts
from edged.device.commands.authorisation import authorisation
from edged.device.commands.dispatcher import CommandDispatcher
from edged.device.commands.transfers import TransferService
from edged.device.events import Events, Extension
from edged.device.integrations.home_assistant import HomeAssistantDiscovery
from edged.device.learning.conditions import BoardWatch, ClockWatch, ConditionsReader
from edged.device.learning.trainer_client import TrainerClient
from edged.device.learning.worker import CANCELLED
from edged.device.outbound.publisher import OutboundRouter
from edged.device.outbound.reporter import Reporter, will_payload
from edged.device.outbound.weight_updates import WeightUpdates
from edged.device.pipeline import Host, LivePipeline, go_live, open_pipeline
from edged.device.reactions import Reactions
from edged.device.reporting.periodic import PeriodicReporter
from edged.device.reporting.status import StatusCollector
from edged.device.startup.open_state import open_state
from edged.device.transfers.bundle_installer import BundleInstaller
from edged.domain.judging.latencies import Latencies
from edged.domain.training.guards import FlashWear
from edged.engines.inference import InferenceReader
from edged.host.board import BoardReader
from edged.host.cpu_affinity import fitting
from edged.host.scheduler import Scheduler
from edged.host.systemd import Notifier, Watchdog
from edged.host.vitals import VitalsReader
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.models.signatures import open_bundle
from edged.storage.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.config import Config
    from edged.device.fleet_member.adapter import Membership
    from edged.device.integrations.sparkplug import EdgeNode
    from edged.device.web.front import WebServer
    from edged.storage.models.bundles import Bundle

log = logs.get_logger("edged.device")

BREATH = 0.003  # seconds left to the serving thread between two pieces of loading a model


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
        self.pipeline = self._open_pipeline()
        self.server, self.learner = self.pipeline.predictor, self.pipeline.scheduler
        self.succession, self.promoter = self.pipeline.rollout, self.pipeline.promoter
        self.recall, self.learning = self.pipeline.recall, self.pipeline.worker
        self.serving, self.ingest = self.pipeline.serving, self.pipeline.ingestor
        self.asking = self.pipeline.requester
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
            listener=self.events,
        )
        self.installing = BundleInstaller(config, self.registry)
        self.updates = WeightUpdates(config, self._present_bundle, self.registry)
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

    def _present_bundle(self) -> Bundle:
        path = self.installing.present()
        if path is None or path == self._state.bundle.path:
            return self._state.bundle
        return open_bundle(path, self.config.model.keys)

    def _open_pipeline(self) -> LivePipeline:
        """The stream of this device, with its threads."""
        config, latencies = self.config, Latencies()
        self.board_watch = BoardWatch(self.clock, BoardReader(), self.events)
        self.clock_watch = ClockWatch(self.clock, self.events)
        rate = config.training.max_write_rate
        wear = None if rate is None else FlashWear(rate)
        host = Host(
            self.events,
            self.clock,
            InferenceReader(
                threads=fitting(config.serving.threads),
                providers=config.serving.provider,
                pause=BREATH,
                warm=True,
            ),
            TrainerClient(config),
            ConditionsReader(self.clock, VitalsReader(config.storage.dir), latencies, self.board_watch, wear),
        )
        pipeline = open_pipeline(config, self._state.bundle, self.registry, self.samples, self._reader, host)
        pipeline.resume()
        for version in pipeline.promoter.unusable:
            serves = pipeline.predictor.champion.version
            self.recovery.note(f"model {version} cannot be used: model {serves} serves")
        return go_live(
            pipeline, host, session=self.session, boot=self.boot, watchdog=self.watchdog, latencies=latencies
        )

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
            vitals=VitalsReader(config.storage.dir),
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
        self._steer()

    def _steer(self) -> None:
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
        self.arrivals = TransferService(
            self.config,
            clock=self.clock,
            registry=self.registry,
            session=self.session,
            topics=self.topics,
            publishing=self.publishing,
            updates=self.updates,
            learning=self.learning,
            succession=self.succession,
            process=self.learner.client,
            installing=self.installing,
            events=self.events,
        )
        self.steering = CommandTable(parts, labelling, self.arrivals.commands())
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
        self._extend(self.discovery, self.arrivals, *(part for part in optional if part is not None))

    def _extend(self, *extensions: Extension) -> None:
        for extension in extensions:
            self.extensions.append(extension)
            self.events.add(extension)

    def _web(self, parts: Parts, membership: Membership | None) -> WebServer | None:
        if self.config.web is None:
            return None
        from edged.device.web.front import WebServer

        return WebServer(self.config.web, parts, None if membership is None else membership.post)

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
