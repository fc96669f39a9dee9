"""A broker of the time before MQTT 5."""

from __future__ import annotations

import socket
import threading

from edged.workbench.demo.broker import HOST


class OldBroker:
    """Refuses MQTT 5 with the code that version 3.1.1 has for it, and passes 3.1.1 on to mosquitto.

    `refuses` are the versions, 4 for 3.1.1, and `words` what is said to them.
    """

    def __init__(
        self, target: int, *, refuses: tuple[int, ...] = (5,), words: bytes = b"\x20\x02\x00\x01"
    ) -> None:
        self._target, self._refuses, self._words = target, refuses, words
        self._server = socket.create_server((HOST, 0))
        self.port = int(self._server.getsockname()[1])
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            connect = client.recv(4096)
            if connect[connect.index(b"MQTT") + 4] in self._refuses:
                client.sendall(self._words)
                client.close()
                continue
            upstream = socket.create_connection((HOST, self._target))
            upstream.sendall(connect)
            self._sockets += [client, upstream]
            for source, sink in ((client, upstream), (upstream, client)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._sockets:
            each.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(4096):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
