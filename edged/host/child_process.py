"""Child processes: their start, an order and its answer (see `edged.domain.child_orders`), and their end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from edged.domain.child_orders import Order, OrderFailed
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message, decode, encode
from edged.errors import EdgedError
from edged.logs import get_logger

log = get_logger("edged.child")

GONE_SECONDS = 10.0  # how long a process that was killed may take to be gone


R = TypeVar("R", bound=Message)


class ChildEndedError(EdgedError):
    """A child process ended without an answer.

    `code` is as `subprocess` gives it, negative for a signal; None where the child took too long.
    """

    def __init__(self, what: str, code: int | None) -> None:
        super().__init__(what)
        self.code = code


def command(module: str) -> list[str]:
    """Return the command for `python -m module` that the kernel ends before the daemon if memory is short."""
    return [sys.executable, "-m", "edged.host.oom_first", module]


def run_order(module: str, order: Order[R], seconds: float) -> R:
    """Have a process of its own, `python -m module`, carry out one order; return its answer.

    Raises the error that the child reports, in its class; ChildEndedError when the child ends without an
    answer, or is stopped after `seconds`.
    """
    try:
        done = subprocess.run(
            command(module), input=encode(order), capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ChildEndedError(f"took longer than {seconds:.0f} s", None) from None
    for line in done.stdout.splitlines():
        values = message_in(line)
        if values is None:
            continue
        answer = decode(values, (order.result(), OrderFailed))
        if isinstance(answer, OrderFailed):
            raise answer.error()
        if isinstance(answer, order.result()):
            return answer
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    raise ChildEndedError(
        lines[-1] if lines else f"the process {ending(done.returncode)[0]}", done.returncode
    )


def carry_out(kinds: Sequence[type[Order[R]]], action: Callable[[Any], R]) -> int:
    """In the child: carry out the order on stdin, one of `kinds`, and answer; return the exit code."""
    try:
        answer: Message = action(decode(json.load(sys.stdin), kinds))
        code = 0
    except EdgedError as problem:
        answer, code = OrderFailed.of(problem), problem.exit_code
    sys.stdout.write(encode(answer).decode())
    sys.stdout.flush()
    return code


def message_in(line: bytes) -> JsonObject | None:
    """The message in a line of output; None when a library has printed something of its own."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if isinstance(message, dict) and "type" in message:
        return message
    log.warning("child_printed", text=line[:200].decode(errors="replace"))
    return None


def stop_process(process: subprocess.Popen[bytes], seconds: float, *, kindly: bool = True) -> None:
    """Stop a process: terminate it (not if `kindly` is False: it leaves by itself), wait, then kill it."""
    if kindly:
        process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        process.wait(GONE_SECONDS)
    except subprocess.TimeoutExpired:
        # It waits for a disk inside the kernel, and dies as soon as that answers.
        log.error("child_unkillable", pid=process.pid)


_MEMORY = "`dmesg` says whether memory ran out: lower training.window or training.batch"
_NATIVE = "native code crashed: try the other one of training.engine native and portable"
_REMEDIES = {
    "SIGKILL": _MEMORY,
    "SIGSEGV": _NATIVE,
    "SIGBUS": _NATIVE,
    "SIGILL": _NATIVE,
    "SIGFPE": _NATIVE,
    "SIGABRT": f"{_NATIVE}, or give it more training.memory",
    "SIGXCPU": "raise the limit on processor time",
    "SIGXFSZ": "raise the limit on the size of files",
}
_IN_THE_LOG = "its log says why"


def ending(code: int | None) -> tuple[str, str]:
    """Return what happened to a process, and what can be done about it.

    `code` is as `subprocess` gives it, negative for a signal; None for one that was ended for its silence.

    >>> ending(-9)[0], ending(3)[0], ending(-40)[0]
    ('was killed by SIGKILL', 'ended with exit code 3', 'was killed by signal 40')
    """
    if code is None:
        return "made no progress and was ended", "use a smaller network or a lower training.batch"
    if code >= 0:
        return f"ended with exit code {code}", _IN_THE_LOG
    try:
        name = signal.Signals(-code).name
    except ValueError:  # real-time signals have no names
        name = f"signal {-code}"
    return f"was killed by {name}", _REMEDIES.get(name, _IN_THE_LOG)
