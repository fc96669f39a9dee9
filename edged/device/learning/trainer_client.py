"""The trainer as a child process: orders go in, messages come out, and its end has a reason."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TypeVar

from edged.config import Config
from edged.device.learning.trainer_slot import AHEAD_SECONDS, StoppedRunError, TrainerSlot
from edged.domain.child_orders import OrderFailed
from edged.domain.training.message import Message, decode, encode
from edged.domain.training.trainer_messages import (
    NO_DATA,
    REPORTS,
    Pace,
    Ready,
    RunRequest,
    Setup,
    TrainingOrder,
    WriteCheckpoint,
)
from edged.domain.training.training_run import RunOptions
from edged.errors import (
    ConfigError,
    EdgedError,
    NoDataError,
    RefusedError,
    StorageError,
    TrainingError,
    UnavailableError,
)
from edged.host.child_process import command, ending, message_in, stop_process
from edged.host.vitals import written_bytes
from edged.logs import get_logger
from edged.storage.models.bundle_archive import ActiveBundle

log = get_logger("edged.trainer_process")

R = TypeVar("R", bound=Message)

KILL_AFTER = 5.0
LONGEST_LINE = 1 << 24  # bytes; what the trainer says is far shorter
RESTARTS = 2  # how often an order is given again to a trainer that left for idleness just then


class NothingNewError(NoDataError):
    """The trainer has learned everything up to label position `consumed`."""

    def __init__(self, what: str, consumed: int) -> None:
        self.consumed = consumed
        super().__init__(what)


FAILURES: dict[str, type[EdgedError]] = {
    "UnavailableError": UnavailableError,
    "ConfigError": ConfigError,
    "BundleError": ConfigError,
    "CorruptError": ConfigError,
    "InterruptedRunError": StoppedRunError,
    "StorageError": StorageError,
}
"""What an error of the trainer is here, by the name of its class; any other is a TrainingError."""


def _log_message(message: Message) -> None:
    log.debug("trainer", message=str(message))


class TrainerClient:
    """The trainer as a child process that stays between runs.

    `run` blocks until the run has ended; `cancel` may be called from any thread. If the bundle to train from
    has changed since the last order, the next order starts another process; without `bundles` it is always
    `model.bundle`. Where streams share a trainer, `slot` says whose turn it is.

    Attributes
    ----------
    written
        Bytes that trainers have handed to the disk, however their runs have ended; of the present one up to
        its newest message. 0 where the kernel does not tell.
    durable
        Whether what the next process writes must outlive a power cut.
    """

    def __init__(
        self,
        config: Config,
        bundles: ActiveBundle | None = None,
        *,
        durable: bool = True,
        slot: TrainerSlot | None = None,
    ) -> None:
        self._config, self._bundles = config, bundles
        self._slot = TrainerSlot() if slot is None else slot
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._buffer = b""
        self._lock = threading.Lock()
        self._cancelled = False
        self._pause: float | None = 0.0
        self._special = RunOptions()
        self._outdated = False
        self._started_with: Path | None = None
        self.written = 0
        self._durable = durable
        self._counted = 0  # of them by the present process

    @property
    def pid(self) -> int | None:
        """Process id of the trainer; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def configure(self, config: Config) -> None:
        """Use another configuration: the next run starts a process with it."""
        self._config, self._outdated = config, True

    def ask_checkpoint(self) -> bool:
        """Request a checkpoint after the present step; return whether the trainer can receive the request."""
        return self.pid is not None and self._send(WriteCheckpoint())

    def run(self, order: TrainingOrder[R], on_message: Callable[[Message], None] = _log_message) -> R:
        """Have an order carried out and return its result.

        A run whose options are `of_process` has a process of its own.

        Raises
        ------
        NothingNewError
            When nothing is new.
        RefusedError
            When what came from elsewhere does not fit, or is not worth having.
        UnavailableError
            When the engine is missing on this machine.
        StoppedRunError
            When it was cancelled.
        StorageError
            When the disk refused what the run had to write or read.
        TrainingError
            When the run failed, or made no progress for ten minutes.
        """
        with self.turn():
            return self._run_now(order, on_message)

    def turn(self, trigger: str = "command") -> AbstractContextManager[None]:
        """Wait until this stream may train, and hold the trainer within; `run` within does not wait again.

        Raises StoppedRunError when `cancel` or `close` was called meanwhile.
        """
        return self._slot.turn(self, self._config.name, AHEAD_SECONDS.get(trigger, 0.0))

    def _run_now(self, order: TrainingOrder[R], on_message: Callable[[Message], None]) -> R:
        self._cancelled = False
        self._special = order.options if isinstance(order, RunRequest) else RunOptions()
        if self._special.of_process or self._outdated:
            self.stop()
            self._outdated = False
        try:
            return self._run(order, on_message)
        finally:
            if self._special.of_process:
                self._special = RunOptions()
                self.stop()

    def _run(self, order: TrainingOrder[R], on_message: Callable[[Message], None]) -> R:
        self._order(order)
        answered, restarts = False, 0
        while True:
            message = self._receive(order.result(), self._config.training.constants.timeout)
            self._count()
            if message is None:
                code = self._exit_code()
                if code == 0 and not answered and restarts < RESTARTS:
                    # It had idled too long and was leaving when the order came.
                    restarts += 1
                    self._order(order)
                    continue
                raise self._exit_error(code)
            answered = answered or not isinstance(message, Ready)
            if isinstance(message, order.result()):
                return message
            if isinstance(message, OrderFailed):
                self._raise(message)
            on_message(message)

    def cancel(self) -> None:
        """Ask a run to stop after the present step and its checkpoint, or before it has its turn."""
        self._slot.withdraw(self)
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._cancelled = True
                self._process.send_signal(signal.SIGTERM)

    def stop(self, *, kindly: bool = True) -> None:
        """Stop the process, with SIGTERM first unless `kindly` is False, as it exits by itself.

        The next order starts another.
        """
        with self._lock:
            process = self._process
            if process is not None:
                self._count()
                stop_process(process, KILL_AFTER, kindly=kindly)
            self._forget()

    def pace(self, pause: float) -> None:
        """Pause after each step for `pause` times the step's own length; if infinite, until the next call.

        Safe to call from any thread. A process that ends after each run ignores it.
        """
        finite = pause if isfinite(pause) else None
        if finite != self._pause:
            self._pause = finite
            self._send(Pace(finite))

    def close(self) -> None:
        """End the process permanently and release what belongs to it."""
        self._slot.forget(self)
        self.stop()
        self._selector.close()

    def _order(self, order: Message) -> None:
        """Hand an order to the process, starting one where there is none."""
        for _ in range(2):
            self._ensure()
            if self._send(order):
                break
            self.stop()
        if (
            self._config.training.constants.resident == 0
            and self._process is not None
            and self._process.stdin is not None
        ):
            self._process.stdin.close()

    def _ensure(self) -> None:
        process = self._process
        bundle = self._config.model.bundle if self._bundles is None else self._bundles.path()
        if process is not None and (process.stdin is None or process.stdin.closed):
            self.stop(kindly=False)
        if process is not None and bundle != self._started_with:
            self.stop()
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._forget()
            try:
                self._process = subprocess.Popen(
                    command("edged.trainer"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            except OSError as problem:
                raise TrainingError(f"the trainer cannot be started: {problem.strerror}") from problem
            if self._process.stdout is None:
                raise TrainingError("the trainer has no output")
            os.set_blocking(self._process.stdout.fileno(), False)
            self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._started_with = bundle
        self._send(self._setup(bundle))
        if self._pause != 0.0:
            self._send(Pace(self._pause))

    def _setup(self, bundle: Path | None) -> Setup:
        """Return the first order of a process."""
        settings = self._config.model_dump(mode="json", exclude_unset=True)
        if bundle is not None:
            settings["model"] = {**settings.get("model", {}), "bundle": str(bundle)}
        constants = asdict(self._config.training.constants)
        return Setup(json.dumps(settings), self._special.base or "checkpoint", self._durable, constants)

    def _send(self, message: Message) -> bool:
        process = self._process
        if process is None or process.stdin is None:
            return False
        try:
            process.stdin.write(encode(message))
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def _receive(self, result: type[Message], timeout: float) -> Message | None:
        """The next report, or the result; None when the process has ended or was ended for its silence."""
        deadline = time.monotonic() + timeout
        while True:
            line = self._line(deadline, timeout)
            if line is None:
                return None
            values = message_in(line)
            if values is None:
                continue
            try:
                return decode(values, (result, *REPORTS))
            except TrainingError:
                self.stop()
                raise

    def _line(self, deadline: float, timeout: float) -> bytes | None:
        """The next whole line of output; None at its end, and at the deadline, which ends the process."""
        while b"\n" not in self._buffer and len(self._buffer) < LONGEST_LINE:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                log.warning("trainer_silent", seconds=timeout)
                self.stop()
                return None
            stdout = self._process.stdout if self._process is not None else None
            chunk = stdout.read(1 << 16) if stdout is not None else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _raise(self, message: OrderFailed) -> None:
        what, where, remedy, reason = message.what, message.where, message.remedy, message.reason
        if reason == NO_DATA and message.consumed is not None:
            raise NothingNewError(what, message.consumed)
        if reason == "RefusedError":
            raise RefusedError(what, where=where, remedy=remedy)
        self.stop()
        raise FAILURES.get(reason, TrainingError)(what, where=where, remedy=remedy)

    def _exit_error(self, code: int | None) -> TrainingError:
        what, remedy = ending(code)
        if self._cancelled:
            return StoppedRunError(f"the trainer {what} when it was asked to stop")
        return TrainingError(f"the trainer {what}", remedy=remedy)

    def _exit_code(self) -> int | None:
        """Return the exit code of the process, after the end of its output."""
        process = self._process
        if process is None:
            return None
        try:
            code: int | None = process.wait(KILL_AFTER)
        except subprocess.TimeoutExpired:
            code = None
        self.stop()
        return code

    def _count(self) -> None:
        """Add the bytes that the process has written; the kernel no longer tells them after its end."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        total = written_bytes(process.pid) or 0
        self.written += max(0, total - self._counted)
        self._counted = max(total, self._counted)

    def _forget(self) -> None:
        process, self._process, self._buffer, self._counted = self._process, None, b"", 0
        if process is None:
            return
        if process.stdout is not None:
            if process.stdout in {key.fileobj for key in self._selector.get_map().values()}:
                self._selector.unregister(process.stdout)
            process.stdout.close()
        if process.stdin is not None:
            try:
                process.stdin.close()
            except BrokenPipeError:
                log.debug("trainer_input_closed")
