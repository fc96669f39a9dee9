"""What a device with several streams says for itself: its status, and the commands at its own topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edged import __version__, logs
from edged.device.commands.answers import CommandAnswers
from edged.device.commands.device import described, pong, set_log_level
from edged.device.commands.dispatcher import CommandDispatcher, command_authority
from edged.device.commands.inbox import CommandInbox
from edged.device.commands.keys import KeyCommands
from edged.device.commands.replacement import StreamChanges
from edged.device.device_parts import DeviceParts
from edged.device.device_settings import DeviceSettings
from edged.device.integrations import ANNOUNCED
from edged.device.integrations.home_assistant import hub_message
from edged.device.one_stream import RunningStream
from edged.device.outbound.reporter import Reporter
from edged.device.reporting.audit import AuditTrail
from edged.device.reports import DeviceStatus, Health, StreamLine, StreamsState
from edged.domain.commands.delivery_policy import MessageKind
from edged.domain.commands.rules import Answer, Request
from edged.domain.commands.tasks import Handler, RunningCommands
from edged.mqtt.client.session import Session
from edged.storage.journal.journal import Sequence
from edged.storage.models.registry import Registry
from edged.storage.models.trust import Trust

log = logs.get_logger("edged.device")


class DirectOutbound:
    """Publishes at once over `session`; what the broker does not get is lost."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def now(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> bool:
        """What is said again at each connection."""
        return self._session.connected and self._session.publish(topic, payload, qos=qos, retain=retain)

    def deliver(self, kind: MessageKind, topic: str, payload: bytes) -> None:
        """News; QoS 1 for all but metrics."""
        self._session.publish(topic, payload, qos=0 if kind is MessageKind.METRICS else 1)


class DeviceTopics:
    """Status, events and commands of the device itself.

    `registry` keeps its journal. `streams` are those that run, `failed` those that do not, with what is
    wrong; both change while the daemon runs. `changes` has streams follow what is set.
    """

    def __init__(
        self,
        parts: DeviceParts,
        registry: Registry,
        streams: Mapping[str, RunningStream],
        failed: Mapping[str, str],
        changes: StreamChanges,
    ) -> None:
        self._parts, self._registry = parts, registry
        self._streams, self._failed = streams, failed
        self._started = parts.clock.monotonic()
        self._sequence = Sequence(registry)
        self.reporter = Reporter(
            topics=parts.topics,
            outbound=DirectOutbound(parts.session),
            number=self._sequence,
            clock=parts.clock,
            boot=parts.boot,
            events=parts.events,
        )
        parts.events.add(self.reporter)
        self._trust = Trust(parts.config.device_dir)
        self._audit = AuditTrail(registry, parts.config.device_dir)
        self._running = RunningCommands()
        self._settings = DeviceSettings(parts, streams, changes)
        self._create_dispatcher()

    def _create_dispatcher(self) -> None:
        parts, config = self._parts, self._parts.config
        answers = CommandAnswers(
            parts.session,
            parts.topics,
            self._running,
            config.commands.answer_to,
            journal=self._registry,
            clock=parts.clock,
        )
        authority = command_authority(
            config.device.id,
            config.commands,
            self._registry,
            parts.clock,
            root=config.mqtt.root,
            makers=config.model.keys,
            trust=self._trust,
        )
        self.inbox = CommandInbox(parts.clock, answers, self._running, authority)
        self.dispatcher = CommandDispatcher(
            self._handlers(),
            config=config.commands,
            clock=parts.clock,
            journal=self._registry,
            answers=answers,
            authority=authority,
            running=self._running,
        )

    def _handlers(self) -> dict[str, Handler]:
        replacement = self._parts.replacement
        handlers: dict[str, Handler] = {
            "ping": Handler(lambda _: pong(self._parts.clock)),
            "status": Handler(lambda _: self.status().to_json()),
            "capabilities": Handler(lambda _: self._capabilities(handlers)),
            "logs.level": Handler(set_log_level),
            "config.get": Handler(self._settings.get),
            "config.set": Handler(self._settings.set),
            "config.replace": Handler(replacement.replace, "later", resume=replacement.resume),
            "keys.rotate": Handler(self._rotate),
            "keys.revoke": Handler(self._revoke),
        }
        return handlers

    # ---- life ------------------------------------------------------------------------------

    def online(self) -> None:
        """Announce the device to Home Assistant, or take that back."""
        config = self._parts.config
        place, message = hub_message(config)
        announced = self._registry.get_value(ANNOUNCED)
        if config.discovery is not None:
            self._parts.session.publish(place, message, qos=1, retain=True)
        elif announced:
            self._parts.session.publish(announced, b"", qos=1, retain=True)
        wanted = place if config.discovery is not None else None
        if announced != wanted:
            self._registry.set_value(ANNOUNCED, wanted)

    def start(self) -> None:
        """Receive commands at the device's own topics."""
        self._audit.record_configuration(self._parts.config, self._parts.clock.now())
        self.dispatcher.resume()
        self.inbox.start(self.dispatcher)
        topics = self._parts.topics
        self._parts.session.subscribe(
            (topics.requests, topics.slashed_requests), 1, self.inbox.receive, as_published=True
        )
        self._parts.timetable.every(1.0, self._audit.drain)
        self._parts.timetable.every(self._parts.config.report.every, self.publish_streams)

    def publish_streams(self) -> None:
        """Publish which streams there are and how they do, where that has changed."""
        self.reporter.state("streams", StreamsState(self.lines()))
        state = f"{len(self._streams)} streams"
        problem = self.problem
        self._parts.notifier.status(f"{state}; {problem}" if problem else state)
        self._sequence.reserve()

    def stop(self) -> None:
        """Take no more commands."""
        self.inbox.stop()
        self.dispatcher.stop()

    def farewell(self) -> None:
        """Before an orderly end."""
        self.reporter.farewell()

    def close(self) -> None:
        """Close what is open."""
        self._sequence.close()
        self._audit.drain()
        self._registry.close()

    # ---- how it does -----------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """What keeps the device from its work, in one line: the connection, or the first such stream."""
        if self._parts.session.problem is not None:
            return self._parts.session.problem
        lines = self.lines()
        return next((f"{name}: {line.problem}" for name, line in lines.items() if line.problem), None)

    def lines(self) -> dict[str, StreamLine]:
        """Return of each stream, by name, whether it runs and what its problem is."""
        problems = {name: stream.status.problem for name, stream in list(self._streams.items())}
        lines = {
            name: StreamLine("degraded" if problem else "online", problem)
            for name, problem in problems.items()
        }
        lines |= {name: StreamLine("failed", problem) for name, problem in list(self._failed.items())}
        return dict(sorted(lines.items()))

    def status(self) -> DeviceStatus:
        """Return the status of the device, with a line for each stream."""
        problem, streams = self.problem, list(self._streams.items())
        lines = self.lines() | {name: stream.status.status().line() for name, stream in streams}
        state = "degraded" if problem else "online"
        return DeviceStatus(
            state=state,
            problem=problem,
            health=Health.of(state, problem),
            ts=self._parts.clock.now(),
            uptime_s=round(self._parts.clock.monotonic() - self._started, 1),
            version=__version__,
            boot=self._parts.boot,
            streams=lines,
        )

    # ---- commands --------------------------------------------------------------------------

    def _capabilities(self, names: Iterable[str]) -> Answer:
        return {
            "device": self._parts.config.device.id,
            "version": __version__,
            "protocol": self._parts.session.protocol,
            "root": self._parts.config.device_root,
            "streams": sorted([*self._streams, *self._failed]),
            "commands": described(names, {}),
        }

    def _rotate(self, request: Request) -> Answer:
        """Replace a key of the device, and of every stream for which it counts."""
        answer = KeyCommands(self._parts.config, self._trust).rotate(request)
        for stream in list(self._streams.values()):
            KeyCommands(stream.config, stream.first.trust).follow(request["old"], request["new"])
        return answer

    def _revoke(self, request: Request) -> Answer:
        """Revoke a key of the device, and of every stream for which it counts."""
        answer = KeyCommands(self._parts.config, self._trust).revoke(request)
        for stream in list(self._streams.values()):
            KeyCommands(stream.config, stream.first.trust).follow(request["key"], None)
        return answer
