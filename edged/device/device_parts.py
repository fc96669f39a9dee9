"""What a device has once, however many streams it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edged.clock import SystemClock
from edged.config import Config
from edged.device.commands.replacement import ConfigReplacement
from edged.device.events import Events
from edged.device.learning.conditions import BoardWatch, ClockWatch
from edged.device.learning.trainer_slot import TrainerSlot
from edged.device.outbound.reporter import will_payload
from edged.device.pipeline import SharedThreads
from edged.host.board import BoardReader
from edged.host.scheduler import Scheduler
from edged.host.systemd import Notifier, Watchdog
from edged.host.vitals import VitalsReader
from edged.host.waiting import WakeupQueue
from edged.mqtt.client.session import Session, StreamSession
from edged.mqtt.topics import Topics
from edged.storage.models.registry import Registry

if TYPE_CHECKING:
    from edged.device.integrations.sparkplug import NodeOfStreams

FRESH_SECONDS, FRESH_SHARE = 10.0, 0.9  # that vital signs hold at most, and of the interval of reports
SEVERAL = "streams"  # the one loop that the watchdog knows where several streams watch their own


class DeviceParts:
    """The parts of a device that all of its streams share.

    `config` is that of any stream: the sections of the device are the same in all. `path`: the configuration
    file. `endings` receives why the daemon, or one of several streams, has to end. `boot` is the number of
    the daemon's start. `registry` is that of a device with several streams. Without a name `config` is that
    of the only stream, and `events` are its own.
    """

    def __init__(
        self,
        config: Config,
        path: Path,
        notifier: Notifier,
        endings: WakeupQueue,
        boot: int,
        registry: Registry | None = None,
    ) -> None:
        self.config, self.path, self.boot = config, path, boot
        self.notifier = notifier
        self.clock = SystemClock()
        self.events = Events()
        self.timetable = Scheduler(self.clock)
        self.watchdog = Watchdog(notifier, (SEVERAL,) if config.name else ("ingest", "serve"))
        self.topics = Topics(config.device_root)
        self.session = Session(
            config.mqtt,
            client_id=config.client_id,
            will=(self.topics.status, will_payload(boot), True),
            listener=self.events,
        )
        self.slot = TrainerSlot()
        self.threads = SharedThreads()
        self.stream_sessions: list[StreamSession] = []
        self.board_watch = BoardWatch(self.clock, BoardReader(), self.events)
        fresh = FRESH_SHARE * min(config.report.every, FRESH_SECONDS)
        self.vitals = VitalsReader(config.device_dir, clock=self.clock, fresh=fresh)
        self.clock_watch = ClockWatch(self.clock, self.events)
        self.edge_node = self._edge_node(registry)
        self.replacement = ConfigReplacement(path, endings)

    def _edge_node(self, registry: Registry | None) -> NodeOfStreams | None:
        if registry is None or self.config.sparkplug is None:
            return None
        from edged.device.integrations.sparkplug import NodeOfStreams

        return NodeOfStreams(self.config, registry, self.clock)
