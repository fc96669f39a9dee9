"""What every use of onnxruntime here shares: session options and turning its errors into one line."""

from __future__ import annotations

import os
import re
from typing import Any

from edged.engines.runtime import native, onnxruntime

# onnxruntime's exceptions have no common base of their own; plain RuntimeError comes from its training API.
ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    *(kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception)),
)

_FATAL = 4
# What its messages carry that says nothing to a reader: status codes, source lines, C++ signatures.
_NOISE = [
    re.compile(r"^.*?\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"\S+\.(?:cc|h):\d+:? (?:\w+: Assertion `\w+` failed: )?"),
    re.compile(r"(?:[\w:]+ )?onnxruntime::[\w:]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? ?"),
    re.compile(r"^ToFile |^ToCheckpointState "),
]
_SYSTEM = re.compile(r"SystemError : (\d+)")


def session_options(threads: int) -> Any:
    """Options with `threads` threads; nothing but fatal errors on stderr, since errors are raised."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    if threads > 1:
        # Spinning would burn a whole core between two batches.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def session(model: str | bytes, threads: int = 1) -> Any:
    """An inference session on the CPU for a file name or a serialised model; raises one of ERRORS."""
    return onnxruntime.InferenceSession(model, session_options(threads), providers=["CPUExecutionProvider"])


def one_line(problem: BaseException, limit: int = 240) -> str:
    """The message of an onnxruntime error in one line, without what only its developers understand."""
    text = " ".join(str(problem).split())
    for noise in _NOISE:
        text = noise.sub("", text)
    text = _SYSTEM.sub(lambda found: os.strerror(int(found[1])), text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
