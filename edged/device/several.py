"""A running device with several streams: they start, fail, restart and end one by one."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged import logs
from edged.clock import SystemClock
from edged.config import Config, loader
from edged.config.streams import OWN
from edged.device.device_parts import SEVERAL, DeviceParts
from edged.device.device_topics import DeviceTopics
from edged.device.events import Listener
from edged.device.lifecycle import WATCH_SECONDS
from edged.device.one_stream import RunningStream
from edged.device.startup.first_opening import FirstOpenings
from edged.device.startup.open_state import open_state, record_failed_start
from edged.device.web.front import WebParts, WebRelay, WebServer
from edged.domain.child_orders import Opened
from edged.domain.events import StreamFailed
from edged.errors import ConfigError, CorruptError, EdgedError, RefusedError, from_system
from edged.host.systemd import Notifier
from edged.host.waiting import WakeupQueue
from edged.mqtt.client.message import ReceivedMessage
from edged.storage.files.atomic import DirectoryLock
from edged.storage.files.damaged_database import rename_damaged
from edged.storage.models.registry import Registry
from edged.storage.models.trust import Trust

log = logs.get_logger("edged.device")

DATABASE = "state.db"  # of the device itself: numbers of messages, its commands
ATTEMPTS = 6  # to open one stream: after each that finds damage, another part of its state is set aside
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class StreamDamage:
    """A database of one stream that turned out to be damaged."""

    stream: str
    file: str


class StreamEndings:
    """Where one stream says that its database `put` is damaged; the main thread hears of it."""

    def __init__(self, name: str, endings: WakeupQueue) -> None:
        self._name, self._endings = name, endings

    def put(self, what: str, /) -> None:
        """The file name of a database that is damaged."""
        self._endings.put(StreamDamage(self._name, what))


class ParkedMessages:
    """Keeps what comes for a stream while it restarts, without acknowledging it."""

    def __init__(self) -> None:
        self._kept: deque[ReceivedMessage] = deque()

    def receive(self, delivery: ReceivedMessage) -> None:
        """Keep a message; on the network thread."""
        self._kept.append(delivery)

    def hand_over(self, stream: RunningStream) -> None:
        """Let `stream` have what was kept."""
        while self._kept:
            stream.receive(self._kept.popleft())


class SeveralStreams(Listener):
    """A device with several streams. One that cannot be opened does not keep the others from starting.

    `configs` are those of all streams; `path`: the file that they are from. `endings` receives a
    `StreamDamage` where a database of a stream is damaged: give it to `repair`.

    Raises EdgedError when the state directory is in use, or none of the streams can be opened.
    """

    def __init__(
        self, configs: Sequence[Config], path: Path, notifier: Notifier, endings: WakeupQueue
    ) -> None:
        self._path, self._endings = path, endings
        self._configs = _read(path, plain=True)
        config = configs[0]
        self._lock = DirectoryLock(config.device_dir)
        self._lock.acquire()
        self.streams: dict[str, RunningStream] = {}
        self.failed: dict[str, str] = {}
        self._opened: dict[object, Opened] = {}
        self._web: WebServer | None = None
        self._stopping = False
        self._changing = threading.RLock()  # signals and commands change streams, on threads of their own
        registry = self._open_registry(config.device_dir)
        self.parts = DeviceParts(config, path, notifier, endings, registry.next_boot(), registry)
        self.parts.replacement.changes = self
        self.own_topics = DeviceTopics(self.parts, registry, self.streams, self.failed, self)
        problems = [self._open(config) for config in configs]
        if not self.streams:
            raise next(problem for problem in problems if problem is not None)
        self.parts.events.add(self)
        self._web = self._open_web()

    def _open_web(self) -> WebServer | None:
        if self.parts.config.web is None:
            return None
        web = WebServer({name: parts for name in self.streams if (parts := self._web_parts(name))})
        for name, stream in self.streams.items():
            stream.events.add(WebRelay(web, name))
        return web

    def _web_parts(self, name: str) -> WebParts | None:
        stream = self.streams[name]
        config = stream.config.web
        if config is None:
            return None
        return WebParts(config, stream.pipeline, stream.status, stream.inbox, None, stream.reviews)

    @staticmethod
    def _open_registry(folder: Path) -> Registry:
        try:
            return Registry.open(folder)
        except CorruptError as problem:
            name = rename_damaged(folder / DATABASE, SystemClock().now())
            log.warning("repaired", what=f"{DATABASE} was set aside as {name}: {problem.what}")
            return Registry.open(folder)

    # ---- what the session tells ------------------------------------------------------------

    def online(self) -> None:
        """Let every stream publish its states."""
        self.parts.timetable.soon(self.own_topics.online)
        for stream in list(self.streams.values()):
            stream.events.online()

    def connection_changed(self) -> None:
        """Let every stream send what waits."""
        for stream in list(self.streams.values()):
            stream.events.connection_changed()
        self.parts.timetable.soon(self.own_topics.publish_streams)

    # ---- life ------------------------------------------------------------------------------

    @property
    def serves(self) -> dict[str, int]:
        """What serves, for the log."""
        return {"streams": len(self.streams), "failed": len(self.failed)}

    @property
    def state_dirs(self) -> list[Path]:
        """The state directories that are open."""
        return [stream.config.storage.dir for stream in self.streams.values()]

    def start(self) -> None:
        """Connect and begin to work."""
        parts = self.parts
        for name in list(self.streams):
            self._start(name)
        parts.timetable.every(WATCH_SECONDS, parts.board_watch.look)
        parts.timetable.every(WATCH_SECONDS, parts.clock_watch.look)
        parts.timetable.every(LOOK_SECONDS, self._watch)
        self.own_topics.start()
        if parts.edge_node is not None:
            parts.edge_node.start()
        if self._web is not None:
            self._web.start()
        parts.timetable.start()
        parts.session.start()
        for stream in self.streams.values():
            stream.announce_start()
        gc.freeze()  # as `Device.start`
        parts.notifier.ready()
        for stream in self.streams.values():
            stream.events.ready()
        parts.events.ready()
        if self._web is not None:
            self._web.ready()
        self.own_topics.publish_streams()

    def _start(self, name: str) -> None:
        """Start an open stream; if it fails, report that, and the others continue."""
        stream = self.streams[name]
        try:
            stream.start()
        except (EdgedError, OSError) as problem:
            stream.begin_stop()
            stream.unsubscribe()
            self._close(name)
            self._failed(name, problem)

    def _watch(self) -> None:
        """Tell the service manager that all is well, unless a loop of a stream is stuck."""
        stuck = [name for name, stream in list(self.streams.items()) if stream.stuck]
        if stuck:
            log.error("stream_stuck", streams=stuck)
        else:
            self.parts.watchdog.beat(SEVERAL)

    def _open(self, config: Config) -> EdgedError | OSError | None:
        """Open a stream, with what is damaged in its state set aside; what is wrong where that fails."""
        folder, name = config.storage.dir, config.name
        problem: EdgedError | OSError | None = None
        for _ in range(ATTEMPTS):
            try:
                self._set_aside_misplaced(folder)
                first = FirstOpenings(config, Trust(folder), self.parts.clock, self._opened)
                state = open_state(config, self.parts.clock, first=first)
                try:
                    endings = StreamEndings(name, self._endings)
                    self.streams[name] = RunningStream(state, self.parts, first, endings)
                except BaseException:
                    state.close(None)
                    raise
            except (EdgedError, OSError) as found:
                problem = found
                if not isinstance(found, CorruptError):
                    break
            else:
                self.failed.pop(name, None)
                return None
        if DirectoryLock.holder(folder) in (None, os.getpid()):
            record_failed_start(folder)
        self._failed(name, problem or CorruptError("it is damaged", where=str(folder)))
        return problem

    def _set_aside_misplaced(self, folder: Path) -> None:
        for place in (folder.parent, folder):
            if os.path.lexists(place) and not place.is_dir():
                name = rename_damaged(place, self.parts.clock.now())
                log.warning("repaired", what=f"{place.name} was set aside as {name}: it is no directory")

    def _failed(self, name: str, problem: EdgedError | OSError) -> None:
        error = problem if isinstance(problem, EdgedError) else from_system(problem)
        self.failed[name] = error.line()
        log.error("stream_failed", stream=name, problem=error.line(), remedy="correct it and reload")
        self.parts.events.event(StreamFailed(name, error.line()))

    def reload(self, path: Path) -> None:
        """Read the configuration again: streams are added, changed and removed, the others go on.

        Log levels are applied, changes of the other sections of the device are named. A configuration that
        cannot be used changes nothing.
        """
        self.parts.notifier.reloading()
        with self._changing:
            try:
                plain, fresh = _read(path, plain=True), _read(path)
            except ConfigError as problem:
                log.error("reload_refused", problem=problem.line())
            else:
                self._apply(plain, fresh)
        self.parts.notifier.ready()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep others from changing streams meanwhile. RefusedError while the daemon stops."""
        with self._changing:
            if self._stopping:
                raise RefusedError("the daemon is stopping", remedy="send it again")
            yield

    def needs_restart(self, configs: Sequence[Config]) -> bool:
        """Return whether more than streams and their sections differ from what is in force."""
        fresh = {config.name: config for config in configs}
        return "" in fresh or bool(self._waiting(fresh))

    def _apply(self, plain: dict[str, Config], fresh: dict[str, Config]) -> None:
        one = next(iter(fresh.values()))
        logs.configure(one.log.level)
        if "" in fresh:
            log.error("reload_refused", problem="its only stream has no name now", remedy="restart")
            return
        waiting = self._waiting(plain)
        added = [name for name in fresh if name not in self._configs or name in self.failed]
        removed = [name for name in self._configs if name not in fresh]
        changed = [
            name for name in fresh if name in self.streams and _own(plain[name]) != _own(self._configs[name])
        ]
        self._configs = {
            name: config if name in (*added, *changed) else self._configs[name]
            for name, config in plain.items()
        }
        for name in removed:
            self.remove(name)
        for name in changed:
            self.restart(name, fresh[name])
        for name in added:
            self.add(fresh[name])
        log.info(
            "reloaded",
            level=one.log.level,
            needs_restart=waiting,
            added=added,
            changed=changed,
            removed=removed,
        )
        self.own_topics.publish_streams()

    def _waiting(self, plain: dict[str, Config]) -> list[str]:
        """Sections of the device that have changed."""
        before, after = self.parts.config, next(iter(plain.values()))
        shared = [name for name in type(after).model_fields if name not in (*OWN, "log", "fleet")]
        return [name for name in shared if getattr(before, name) != getattr(after, name)]

    def add(self, config: Config) -> None:
        """Open and start another stream while the others continue."""
        name = config.name
        if self._open(config) is None:
            self._start(name)
        if name in self.streams:
            self._greet(name)

    def _greet(self, name: str) -> None:
        stream = self.streams[name]
        if self._web is not None:
            stream.events.add(WebRelay(self._web, name))
            self._web.replace(name, self._web_parts(name))
        if self.parts.session.connected:
            stream.events.online()
        stream.announce_start()
        stream.events.ready()

    def remove(self, name: str) -> None:
        """Stop a stream; its state stays on the disk."""
        self.failed.pop(name, None)
        stream = self.streams.get(name)
        if stream is None:
            return
        stream.unsubscribe()
        stream.begin_stop()
        stream.finish()
        stream.withdraw_all()
        self._close(name)

    def restart(self, name: str, config: Config, damaged: str | None = None) -> None:
        """Stop a stream and start it again; messages that come meanwhile wait."""
        stream, session, parked = self.streams[name], self.parts.session, ParkedMessages()
        filters = stream.filters
        session.subscribe(filters, 1, parked.receive, shared=True)
        stream.unsubscribe()
        stream.begin_stop()
        stream.finish(damaged)
        self._close(name, damaged)
        if self._open(config) is None:
            self._start(name)
        session.unsubscribe(filters, parked.receive)
        if name in self.streams:
            parked.hand_over(self.streams[name])
            self._greet(name)

    def _close(self, name: str, damaged: str | None = None) -> None:
        if self._web is not None and not self._stopping:
            self._web.replace(name, None)
        self.streams.pop(name).close(damaged)

    def repair(self, what: Any) -> None:
        """Restart the stream of a `StreamDamage`: the start sets the damaged database aside."""
        with self._changing:
            if isinstance(what, StreamDamage) and what.stream in self.streams:
                config = _read(self._path).get(what.stream, self.streams[what.stream].config)
                self.restart(what.stream, config, what.file)
                self.own_topics.publish_streams()

    def stop(self, damaged: str | None = None) -> None:  # noqa: ARG002  streams restart by themselves
        """Orderly: no new messages, what is here committed and answered, trainer ended, goodbye said."""
        with self._changing:
            self._stopping = True
        if self._web is not None:
            self._web.stop()
        self.parts.timetable.stop(1.0)
        for stream in self.streams.values():
            stream.begin_stop()
        self.own_topics.stop()
        for stream in self.streams.values():
            stream.finish()
        self.own_topics.farewell()
        if self.parts.edge_node is not None:
            self.parts.edge_node.stop()
        self.parts.session.stop()
        for name in list(self.streams):
            self._close(name)
        self.own_topics.close()
        self._lock.release()


def _read(path: Path, *, plain: bool = False) -> dict[str, Config]:
    return {config.name: config for config in loader.load_all(path, plain=plain)}


def _own(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in (*OWN, "fleet")}
