"""Waking the network thread out of its wait."""

from __future__ import annotations

import contextlib
import socket


class WakeupPipe:
    """Makes a selector return, from any thread; any number of calls cost one wake-up."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._set = False

    def fileno(self) -> int:
        """File descriptor for a selector."""
        return self._receiver.fileno()

    def wake(self) -> None:
        """Call after the work has been put where the network thread looks for it."""
        if self._set:
            return
        self._set = True
        # A full buffer has woken it already; a closed socket has nobody to wake.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Discard pending wake-ups; call it before looking for work."""
        with contextlib.suppress(OSError):
            self._receiver.recv(4096)
        self._set = False

    def close(self) -> None:
        """Give the sockets back; `wake` does nothing from now on."""
        self._receiver.close()
        self._sender.close()
