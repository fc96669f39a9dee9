"""A network between client and broker that can be cut in the middle of a packet."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading

from edged.workbench.demo.broker import HOST

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset at once


class Proxy:
    """Forwards connections on `port`, a free one unless it is given, to the broker's, on its own thread."""

    def __init__(self, upstream: int, seed: int = 0, port: int = 0) -> None:
        self._upstream = upstream
        self._rng = random.Random(seed)
        self._listener = socket.create_server((HOST, port))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._leak = -1
        self._ending = False
        self._thread = threading.Thread(target=self._loop, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Break every connection after some more bytes, most likely within a packet."""
        with self._lock:
            self._leak = self._rng.randrange(0, 400)

    def close(self) -> None:
        """End, and with it every connection."""
        self._ending = True
        self._thread.join(10)
        self._break_all()
        self._selector.close()
        self._listener.close()

    def _loop(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._peers:
                    self._forward(key.fileobj)
            with self._lock:
                leak, self._leak = self._leak, -1
            if leak >= 0:
                self._spill(leak)
                self._break_all()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection((HOST, self._upstream), 5)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        try:
            data = source.recv(65536)
            self._peers[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._break(source)

    def _spill(self, count: int) -> None:
        """Let a few bytes through, cutting where no packet ends."""
        for source, target in list(self._peers.items()):
            with contextlib.suppress(OSError):
                source.setblocking(False)
                target.sendall(source.recv(count + 1))

    def _break(self, one: socket.socket) -> None:
        for end in (one, self._peers.pop(one)):
            self._peers.pop(end, None)
            self._selector.unregister(end)
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()

    def _break_all(self) -> None:
        while self._peers:
            self._break(next(iter(self._peers)))
