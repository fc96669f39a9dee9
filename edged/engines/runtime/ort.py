"""onnxruntime as every part uses it: import without the training stack, providers, sessions, errors.

onnxruntime-training, when imported, tries to import `onnxruntime.training.ortmodule` to look at its CUDA
version. Without torch that fails, but only after `onnx` and all offline tooling have been loaded: 14 MB
and half of the import time, for nothing, in a daemon that only serves. Everything imports the runtime from
this module, so that the attempt fails at once.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edged.domain.protocols import Labels, labels_of
from edged.errors import ConfigError, NonFiniteError, TrainingError, UnavailableError

_PROBED = "onnxruntime.training.ortmodule"


def _import_runtime() -> Any:
    modules = cast("dict[str, Any]", sys.modules)
    # None is how the import system is told that a module does not exist.
    modules.setdefault(_PROBED, None)
    try:
        return importlib.import_module("onnxruntime")
    finally:
        if modules[_PROBED] is None:
            del modules[_PROBED]


onnxruntime = _import_runtime()
native = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")


CPU = ("CPUExecutionProvider",)

ONLY_FETCHED = onnxruntime.RunOptions()
"""Run no node that the wanted outputs do not need."""
ONLY_FETCHED.only_execute_path_to_fetches = True


def only_cpu(providers: Sequence[str]) -> bool:
    """Whether nothing but the CPU is asked for.

    >>> only_cpu(["CUDAExecutionProvider", "CPUExecutionProvider"])
    False
    """
    return all(name == CPU[0] for name in providers)


def check(providers: Sequence[str], where: str) -> None:
    """Refuse a provider that this onnxruntime was not built with; `where` is the key that names it.

    onnxruntime itself would warn and take the CPU: whoever has paid for an accelerator wants to know.

    Raises ConfigError naming those that there are.
    """
    there = onnxruntime.get_available_providers()
    for name in providers:
        if name not in there:
            raise ConfigError(
                f"this onnxruntime has no {name}",
                where=where,
                remedy=f"it has {', '.join(there)}; others come with other builds of onnxruntime",
            )


def with_cpu(providers: Sequence[str]) -> list[str]:
    """The providers in their order, the CPU last: it has every operator."""
    return [*(name for name in providers if name != CPU[0]), *CPU]


def confirm(session: Any, providers: Sequence[str]) -> None:
    """Refuse a session that has silently gone without a provider, as when its driver is missing.

    Raises UnavailableError naming the provider.
    """
    for name in providers:
        if name not in session.get_providers():
            raise UnavailableError(
                f"{name} is in this onnxruntime, but cannot be used on this machine",
                where="execution provider",
                remedy="install its driver and libraries, or take CPUExecutionProvider",
            )


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
    # Arm's kernels for processors with SME: dynamic quantisation gave outputs that were off by their own size
    # (onnxruntime 1.31.1, emulated by qemu 7.2). No board that edged is made for has SME.
    options.add_session_config_entry("mlas.disable_kleidiai", "1")
    if threads > 1:
        # Spinning would burn a whole core between two batches.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def session(
    model: str | bytes, threads: int = 1, providers: Sequence[str] = CPU, *, in_order: bool = False
) -> Any:
    """An inference session for a file name or a serialised model; raises one of ERRORS.

    What the providers cannot run, the CPU does; UnavailableError when one of them cannot be used at all.
    With `in_order` nodes run in the order of the file, as far as they can, instead of the runtime's own.
    """
    options = session_options(threads)
    if in_order:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    made = onnxruntime.InferenceSession(model, options, providers=with_cpu(providers))
    confirm(made, providers)
    return made


def trial_session(model: bytes) -> Any:
    """Return a session for a look at a serialised graph, neither optimised nor with a plan for its memory.

    Both take time that grows with the square of the number of nodes. Raises one of ERRORS.
    """
    options = session_options(1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    return onnxruntime.InferenceSession(model, options, providers=with_cpu(CPU))


def session_in_steps(path: str, breathe: Callable[[], None], providers: Sequence[str] = CPU) -> Any:
    """A bare session, made in two steps with `breathe()` between them.

    The runtime holds the interpreter's lock while it reads a model, and again while it prepares it (about
    0.5 ms each for a small one). Its own class does both without a pause, so that a thread that serves
    would wait for the sum. A bare session has `run`, `inputs_meta` and `outputs_meta`. Providers and
    errors are as with `session`. It has no arena, which would keep a quarter of a megabyte for each model.
    """
    options = session_options(1)
    options.enable_cpu_mem_arena = False
    made = native.InferenceSession(options, path, True, False)
    breathe()
    names = with_cpu(providers)
    made.initialize_session(names, [{} for _ in names], set())
    confirm(made, providers)
    return made


def refused_batch(x: NDArray[np.float32], y: Labels, problem: Exception, model: Path) -> TrainingError:
    """The error for a batch that a training graph does not take, with types and shapes of all its arrays."""
    labels = ", ".join(f"label {label.dtype}{list(label.shape)}" for label in labels_of(y))
    return TrainingError(
        f"the training graph refuses a batch (input {x.dtype}{list(x.shape)}, {labels}): {one_line(problem)}",
        where=str(model),
        remedy="the shapes and types it takes are in bundle.json",
    )


def not_finite(parameters: Mapping[str, NDArray[np.float32]], model: Path) -> NonFiniteError:
    """The error for weights that are NaN or infinite."""
    bad = [name for name, value in parameters.items() if not np.isfinite(value).all()]
    return NonFiniteError(
        f"weights are no longer finite: {', '.join(bad[:3])}",
        where=str(model),
        remedy="lower training.learning_rate, or look for samples far outside the usual range",
    )


def one_line(problem: BaseException, limit: int = 240) -> str:
    """The message of an onnxruntime error in one line, without what only its developers understand."""
    text = " ".join(str(problem).split())
    for noise in _NOISE:
        text = noise.sub("", text)
    text = _SYSTEM.sub(lambda found: os.strerror(int(found[1])), text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
