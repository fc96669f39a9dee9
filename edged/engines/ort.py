"""What every use of onnxruntime here shares: session options and turning its errors into one line."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from edged.engines.providers import CPU, confirm, with_cpu
from edged.engines.runtime import native, onnxruntime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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
# Where a file in ORT format has its flatbuffer's identifier.
_IDENTIFIER = slice(4, 8), b"ORTM"


def session_options(threads: int) -> Any:
    """Options with `threads` threads; nothing but fatal errors on stderr, since errors are raised."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # Arm's kernels for processors with SME: dynamic quantisation gave outputs that were off by their own size
    # (onnxruntime 1.31.1, emulated by qemu 7.2). No board that edged is made for has SME.
    options.add_session_config_entry("mlas.disable_kleidiai", "1")
    if threads > 1:
        # Spinning would burn a whole core between two batches.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def in_ort_format(path: Path | str) -> bool:
    """Whether a file is in ORT format, whatever its name; False where it cannot be read."""
    place, identifier = _IDENTIFIER
    try:
        with open(path, "rb") as file:  # noqa: PTH123  a name is as good as a path
            return file.read(place.stop)[place] == identifier
    except OSError:
        return False


def _options_for(model: str | bytes, threads: int) -> Any:
    options = session_options(threads)
    # The runtime goes by the ending of the name.
    if isinstance(model, str) and in_ort_format(model):
        options.add_session_config_entry("session.load_model_format", "ORT")
    return options


def remedy_for(path: Path | str, otherwise: str) -> str:
    """What to do about a graph that this runtime cannot load."""
    if not in_ort_format(path):
        return otherwise
    return (
        "a file in ORT format is what the onnxruntime that wrote it made of a graph, and this is"
        f" {onnxruntime.__version__}: build the bundle with the version that runs it, or without --ort-format"
    )


def session(model: str | bytes, threads: int = 1, providers: Sequence[str] = CPU) -> Any:
    """An inference session for a file name or a serialised model; raises one of ERRORS.

    What the providers cannot run, the CPU does; UnavailableError when one of them cannot be used at all.
    """
    made = onnxruntime.InferenceSession(model, _options_for(model, threads), providers=with_cpu(providers))
    confirm(made, providers)
    return made


def session_in_steps(
    path: str, threads: int, breathe: Callable[[], None], providers: Sequence[str] = CPU
) -> Any:
    """A bare session, made in two steps with `breathe()` between them.

    The runtime holds the interpreter's lock while it reads a model, and again while it prepares it (about
    0.5 ms each for a small one). Its own class does both without a pause, so that a thread that serves
    would wait for the sum. A bare session has `run`, `inputs_meta` and `outputs_meta`. Providers and
    errors are as with `session`.
    """
    made = native.InferenceSession(_options_for(path, threads), path, True, False)
    breathe()
    names = with_cpu(providers)
    made.initialize_session(names, [{} for _ in names], set())
    confirm(made, providers)
    return made


def one_line(problem: BaseException, limit: int = 240) -> str:
    """The message of an onnxruntime error in one line, without what only its developers understand."""
    text = " ".join(str(problem).split())
    for noise in _NOISE:
        text = noise.sub("", text)
    text = _SYSTEM.sub(lambda found: os.strerror(int(found[1])), text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
