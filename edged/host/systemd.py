"""The service manager's notification protocol, and a watchdog fed by the loops themselves.

Source: sd_notify(3) and sd_watchdog_enabled(3). Without `NOTIFY_SOCKET` (a terminal, a container, a
test) every message is dropped silently, so that nobody has to ask whether systemd is there.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping

from edged.clock import Clock, SystemClock
from edged.errors import ConfigError

# The manager reads its socket all the time; when it does not, the daemon must not hang with it.
_PATIENCE_S = 1.0
# A keep-alive is sent from inside the serving loop, which waits for nobody; the next one makes up for it.
_NO_PATIENCE = 0.0
# Four times as often as demanded: one late turn of a loop is no reason to be killed.
_KEEP_ALIVES_PER_INTERVAL = 4


class Notifier:
    """Tells the service manager how the daemon is doing.

    `NOTIFY_SOCKET` is looked up in `environ`, this process's environment by default: the path of a
    datagram socket, or an abstract one beginning with `@`. Without it nothing is sent.

    >>> Notifier({}).ready()
    False
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.address = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
        # Why the last message was not delivered: a manager that does not listen takes no daemon down.
        self.problem = ""

    def ready(self, status: str = "") -> bool:
        """Start-up, or a reload, is finished. True when the message was delivered."""
        return self._send(("READY", "1"), ("STATUS", status))

    def status(self, text: str) -> bool:
        """Set the line that `systemctl status` shows."""
        return self._send(("STATUS", text))

    def reloading(self, status: str = "") -> bool:
        """The configuration is being read again; `ready` must follow."""
        stamp = str(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        return self._send(("RELOADING", "1"), ("MONOTONIC_USEC", stamp), ("STATUS", status))

    def stopping(self, status: str = "") -> bool:
        """Report that the shutdown has begun."""
        return self._send(("STOPPING", "1"), ("STATUS", status))

    def watchdog(self) -> bool:
        """Keep-alive, without waiting; use `Watchdog`, which sends it only while every loop turns."""
        return self._send(("WATCHDOG", "1"), patience=_NO_PATIENCE)

    def _send(self, *fields: tuple[str, str], patience: float = _PATIENCE_S) -> bool:
        if not self.address:
            return False
        # A line break would begin the next field, so a text must not smuggle one in.
        lines = [f"{name}={' '.join(text.split())}" for name, text in fields if text]
        try:
            self._deliver("\n".join(lines).encode(), patience)
        except OSError as problem:
            self.problem = f"{self.address}: {problem.strerror or problem}"
            return False
        self.problem = ""
        return True

    def _deliver(self, message: bytes, patience: float) -> None:
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(patience)
            sender.sendto(message, address)


def watchdog_interval(environ: Mapping[str, str] | None = None, pid: int | None = None) -> float | None:
    """Seconds within which the service manager wants a keep-alive; None when it wants none.

    `WATCHDOG_USEC` and `WATCHDOG_PID` say so: children inherit the variables but are not meant.

    Raises ConfigError when a variable holds no number: going on would end in a kill nobody understands.
    """
    environ = os.environ if environ is None else environ
    interval = _number(environ, "WATCHDOG_USEC")
    meant = _number(environ, "WATCHDOG_PID")
    if not interval or (meant is not None and meant != (os.getpid() if pid is None else pid)):
        return None
    return interval / 1e6


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"expected a whole number, got {text!r}",
            where=f"environment variable {name}",
            remedy="unset it, or let systemd set it from WatchdogSec=",
        )
    return int(text)


class Watchdog:
    """Sends the keep-alive only while all loops turn.

    There is no thread: the message goes out from inside `beat`, at the moment when the last of the
    loops has shown itself since the message before. One stuck loop therefore silences all others,
    and the service manager restarts the daemon at most `interval` seconds after the last message.

    `interval` is in seconds, by default what `watchdog_interval()` says of this process; where that is None
    too, nothing is sent. ValueError without loops: what watches nothing would bark at once or never.
    """

    def __init__(
        self,
        notifier: Notifier,
        loops: Iterable[str],
        interval: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._notifier = notifier
        self._clock = clock or SystemClock()
        self._interval = watchdog_interval() if interval is None else interval
        self._lock = threading.Lock()
        self._loops = frozenset(loops)
        if not self._loops:
            raise ValueError("a watchdog needs the name of at least one loop")
        self._pending = set(self._loops)
        self._due = self._clock.monotonic() + (self.period or 0.0)

    @property
    def period(self) -> float | None:
        """Longest time in seconds a loop should wait before it beats again; None without a watchdog."""
        return None if self._interval is None else self._interval / _KEEP_ALIVES_PER_INTERVAL

    def beat(self, name: str) -> bool:
        """Loop `name` has made a turn. True when a keep-alive went out. Safe from any thread.

        Raises KeyError when no loop of that name was registered.
        """
        now = self._clock.monotonic()
        with self._lock:
            if name not in self._loops:
                raise KeyError(name)
            self._pending.discard(name)
            if not self._is_due(now):
                return False
            self._pending = set(self._loops)
            self._due = now + (self.period or 0.0)
        return self._notifier.watchdog()

    def _is_due(self, now: float) -> bool:
        return self._interval is not None and not self._pending and now >= self._due


class LoopWatch(Watchdog):
    """The loops of one stream of several: notes when each last turned, and sends nothing itself.

    A loop that waits for work need not turn; see `stuck`.
    """

    def __init__(self) -> None:
        super().__init__(Notifier({}), ("ingest", "serve"))
        self._turned: dict[str, float] = {}

    @property
    def period(self) -> float | None:
        """None: a loop without work may wait as long as it likes."""
        return None

    def beat(self, name: str) -> bool:
        """Loop `name` has made a turn."""
        self._turned[name] = self._clock.monotonic()
        return False

    def stuck(self, name: str, *, works: bool) -> bool:
        """Whether loop `name` has work and has made no turn in the time that the service manager allows."""
        now = self._clock.monotonic()
        if not works:
            self._turned[name] = now
        return self._interval is not None and now - self._turned.setdefault(name, now) > self._interval
