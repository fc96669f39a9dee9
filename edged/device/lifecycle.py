"""The life of a running device with one stream: start, reload, stop."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from edged import logs
from edged.clock import SystemClock
from edged.config import Config, loader
from edged.device.device_parts import DeviceParts
from edged.device.one_stream import RunningStream
from edged.device.startup.first_opening import FirstOpenings
from edged.device.startup.open_state import open_state
from edged.errors import ConfigError
from edged.host.systemd import Notifier
from edged.host.waiting import WakeupQueue
from edged.storage.models.trust import Trust

log = logs.get_logger("edged.device")

WATCH_SECONDS = 5.0  # between two looks at the board and at the clock


class Device:
    """A running device with the one stream that it has, with a beginning and an end.

    `endings` receives the name of the file when a database turns out to be damaged.
    """

    def __init__(
        self, configs: Sequence[Config], path: Path, notifier: Notifier, endings: WakeupQueue
    ) -> None:
        (config,) = configs
        first = FirstOpenings(config, Trust(config.storage.dir), SystemClock())
        state = open_state(config, SystemClock(), first=first)
        self.parts = DeviceParts(state.config, path, notifier, endings, state.boot)
        self.stream = RunningStream(state, self.parts, first, endings)

    @property
    def state_dirs(self) -> list[Path]:
        """The state directories that are open."""
        return [self.stream.config.storage.dir]

    def repair(self, what: object) -> None:
        """Nothing: what is damaged here ends the daemon, and the next start repairs it."""

    @property
    def failed(self) -> dict[str, str]:
        """Nothing: a stream that fails to start ends the daemon."""
        return {}

    @property
    def serves(self) -> dict[str, int]:
        """What serves, for the log."""
        return {"model": self.stream.pipeline.predictor.champion.version}

    def start(self) -> None:
        """Connect and begin to work."""
        parts = self.parts
        self.stream.start()
        parts.timetable.every(WATCH_SECONDS, parts.board_watch.look)
        parts.timetable.every(WATCH_SECONDS, parts.clock_watch.look)
        parts.timetable.start()
        parts.session.start()
        self.stream.announce_start()
        gc.freeze()  # predictions wait for full collections, which need not look at all this
        parts.notifier.ready()
        parts.events.ready()

    def reload(self, path: Path) -> None:
        """Read the configuration again: the log level is applied, other changes are named.

        A configuration that cannot be used changes nothing.
        """
        self.parts.notifier.reloading()
        config = self.stream.config
        try:
            fresh = loader.load_all(path)
        except ConfigError as problem:
            log.error("reload_refused", problem=problem.line())
        else:
            logs.configure(fresh[0].log.level)
            changed = ["streams"] if fresh[0].name else changed_sections(config, fresh[0])
            log.info("reloaded", level=fresh[0].log.level, needs_restart=changed)
        self.parts.notifier.ready()

    def stop(self, damaged: str | None = None) -> None:
        """Orderly: no new messages, what is here committed and answered, trainer ended, goodbye said.

        `damaged` is the database because of which it ends, if it is one.
        """
        self.stream.begin_stop()
        self.stream.finish(damaged)
        self.parts.session.stop()
        self.stream.close(damaged)


def changed_sections(before: Config, after: Config) -> list[str]:
    """Return the sections whose changes do not take effect by themselves."""
    return [
        name
        for name in type(after).model_fields
        if name not in ("log", "model") and getattr(after, name) != getattr(before, name)
    ]
