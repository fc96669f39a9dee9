"""Publishing the lines of a file as messages, each acknowledged by the broker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from edged.config import MqttConfig
from edged.errors import BrokerError, EdgedError
from edged.mqtt.client.session import Session

CONNECT_SECONDS = 10.0
MOST_WAITING = 1000  # messages without an acknowledgement
FAREWELL_SECONDS = 1.0
LOOK_SECONDS = 0.2  # between two looks at a file that is followed


class LinePublisher:
    """Publishes messages on `topic` at QoS 1, over a session of its own.

    A lost connection is made again, and unacknowledged messages are sent again, for at most `patience`
    seconds without an acknowledgement; None for any time.
    """

    def __init__(self, config: MqttConfig, topic: str, *, patience: float | None) -> None:
        self._topic, self._patience = topic, patience
        unkept = config.with_constants(session_expiry=0.0)
        self._session = Session(unkept, client_id=f"edged-ingest-{os.getpid()}", backlog=MOST_WAITING)
        self._room = threading.Semaphore(MOST_WAITING)
        self._answered = 0

    @property
    def acknowledged(self) -> int:
        """Number of messages that the broker has accepted."""
        return self._answered - self._session.dropped

    def connect(self) -> None:
        """Connect; raise BrokerError when the broker does not accept the connection."""
        self._session.connect(CONNECT_SECONDS, "`edged doctor` says more")

    def publish(self, payload: bytes) -> None:
        """Publish a message, and wait while too many are unacknowledged.

        Raises BrokerError when the broker rejects messages, or acknowledges none for too long.
        """
        self._acquire()
        self._session.publish(self._topic, payload, qos=1, on_done=self._on_done)

    def flush(self) -> None:
        """Wait until all messages are acknowledged; raises as `publish` does. Call it once, at the end."""
        for _ in range(MOST_WAITING):
            self._acquire()

    def _acquire(self) -> None:
        if not self._room.acquire(timeout=self._patience):
            problem = self._session.problem or f"no acknowledgement for {self._patience:g} s"
            raise BrokerError(problem, where=self._topic, remedy="publish the rest when the broker answers")
        if self._session.dropped:
            remedy = "the line above says why; check the broker's access rules and limits"
            raise BrokerError("the broker rejects messages", where=self._topic, remedy=remedy)

    def _on_done(self) -> None:
        self._answered += 1
        self._room.release()

    def close(self) -> None:
        """Send what waits, for a second at most, and disconnect."""
        self._session.stop(FAREWELL_SECONDS)


def lines_of(file: IO[bytes], longest: int) -> Iterator[bytes]:
    """The lines of a file without their ends and without empty ones; EdgedError for one that is too long."""
    for number, line in enumerate(iter(lambda: file.readline(longest + 2), b""), 1):
        yield from _message(line, number, longest)


def followed_lines(path: Path, longest: int) -> Iterator[bytes]:
    """The lines of a file and all that are written to it later, also when another takes its place.

    Raises EdgedError for a line of more than `longest` bytes, OSError when the file cannot be read.
    """
    number = 0
    while True:
        with path.open("rb") as file:
            part = b""
            while not _replaced(path, file):
                piece = file.readline(longest + 2 - len(part))
                part += piece
                if part.endswith(b"\n") or len(part) > longest + 1:
                    number += 1
                    yield from _message(part, number, longest)
                    part = b""
                elif not piece:
                    time.sleep(LOOK_SECONDS)


def _replaced(path: Path, file: IO[bytes]) -> bool:
    """Whether a file has been read to its end and is no longer the one at `path`, or has become shorter."""
    here = os.fstat(file.fileno())
    if file.tell() < here.st_size:
        return False
    with suppress(FileNotFoundError):
        there = path.stat()
        return file.tell() > here.st_size or (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)
    return False


def _message(line: bytes, number: int, longest: int) -> Iterator[bytes]:
    text = line.rstrip(b"\r\n")
    if len(text) > longest:
        raise EdgedError(
            f"more than {longest} bytes", where=f"line {number}", remedy="raise stream.max_payload"
        )
    if text.strip():
        yield text
