"""How a child process ended, in words that lead to the cause."""

from __future__ import annotations

import signal

_MEMORY = "`dmesg` says whether memory ran out: lower training.window or training.batch"
_NATIVE = "native code crashed: try the other one of training.engine native and portable"
_REMEDIES = {
    "SIGKILL": _MEMORY,
    "SIGSEGV": _NATIVE,
    "SIGBUS": _NATIVE,
    "SIGILL": _NATIVE,
    "SIGFPE": _NATIVE,
    "SIGABRT": f"{_NATIVE}, or give it more training.memory_limit",
    "SIGXCPU": "raise the limit on processor time",
    "SIGXFSZ": "raise the limit on the size of files",
}
_IN_THE_LOG = "its log says why"


def ending(code: int | None) -> tuple[str, str]:
    """What happened to a process, and what can be done about it.

    Parameters
    ----------
    code
        As `subprocess` gives it: negative for a signal; None for one that was ended for its silence.

    >>> ending(-9)[0], ending(3)[0], ending(-40)[0]
    ('was killed by SIGKILL', 'ended with exit code 3', 'was killed by signal 40')
    """
    if code is None:
        return "made no progress and was ended", "raise training.timeout if its steps take that long"
    if code >= 0:
        return f"ended with exit code {code}", _IN_THE_LOG
    try:
        name = signal.Signals(-code).name
    except ValueError:  # real-time signals have no names
        name = f"signal {-code}"
    return f"was killed by {name}", _REMEDIES.get(name, _IN_THE_LOG)
