"""The pipe between trainer and daemon: orders on stdin, reports and results on stdout."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from edged.domain.federated.round_orders import ROUND_ORDERS
from edged.domain.training.message import Message, decode, encode
from edged.domain.training.trainer_messages import ORDERS, Pace, RunPaused, WriteCheckpoint

KNOWN = (*ORDERS, *ROUND_ORDERS)
HALT_SECONDS = 10.0  # between two signs of life of a run that is paused


class DaemonPipe:
    """The trainer's end of the pipe, see `RunControl`; also receives SIGTERM and SIGINT.

    A `Pace` or a `WriteCheckpoint` may arrive at any time, also within a run.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._pace: float | None = 0.0
        self._ended = self._checkpoint = self._stopping = False
        # A signal does not end a select() by itself; a byte in this pipe does.
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)

    @property
    def stopping(self) -> bool:
        """True if a signal has asked this process to end."""
        return self._stopping

    def report(self, message: Message) -> None:
        """Write a message as one JSON line on stdout."""
        sys.stdout.write(encode(message).decode())
        sys.stdout.flush()

    def next_order(self, idle: float | None) -> Message | None:
        """Return the next order; None at the end of input, after `idle` seconds, or when stopped."""
        while True:
            while b"\n" not in self._buffer:
                if not self._read(idle):
                    return None
            line, _, self._buffer = self._buffer.partition(b"\n")
            order = decode(json.loads(line), KNOWN)
            if not self._accept(order):
                return order

    def throttle(self, seconds: float) -> None:
        """Pause after a step that took `seconds`, as long as the pace asks for."""
        self._receive()
        until = time.monotonic() + seconds * (self._pace or 0.0)
        while not (self._stopping or self._ended):
            left = until - time.monotonic()
            if self._pace is None:
                self.report(RunPaused())
                left = HALT_SECONDS
            elif left <= 0:
                return
            if self._read(left):
                self._receive()
                until = time.monotonic() + seconds * (self._pace or 0.0)

    def checkpoint_requested(self) -> bool:
        """Return whether a checkpoint was requested since the last call."""
        requested, self._checkpoint = self._checkpoint, False
        return requested

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _read(self, seconds: float | None) -> bool:
        """Wait for more input; False at its end, after that time, or when stopped."""
        ready = select.select([0, self._woken], [], [], seconds)[0]
        if self._stopping or 0 not in ready:
            return False
        chunk = os.read(0, 1 << 16)
        self._ended = not chunk
        self._buffer += chunk
        return bool(chunk)

    def _receive(self) -> None:
        """Accept what concerns the present run; orders stay in the buffer."""
        while not self._ended and select.select([0], [], [], 0)[0] and self._read(0):
            pass
        *lines, rest = self._buffer.split(b"\n")
        orders = [line + b"\n" for line in lines if not self._accept(decode(json.loads(line), KNOWN))]
        self._buffer = b"".join(orders) + rest

    def _accept(self, order: Message) -> bool:
        """Record the effect of a message that concerns the present run; return whether it does."""
        if isinstance(order, Pace):
            self._pace = order.pause
        elif isinstance(order, WriteCheckpoint):
            self._checkpoint = True
        return isinstance(order, Pace | WriteCheckpoint)
