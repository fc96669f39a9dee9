"""Calling onnxruntime's own artifact generator, and correcting what it leaves behind.

Corrections: file versions newer than the runtime reads, names that depend on earlier calls in the same
process, and a logger that is left at INFO.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from edged.engines import ort, training_api
from edged.engines.runtime import onnxruntime
from edged.errors import BundleError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_IR_VERSION = 10
TRAINING, EVALUATION, OPTIMIZER = "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"
CHECKPOINT = "checkpoint"
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}

_ERROR_SEVERITY = 3
_NO_GRADIENT = re.compile(r"gradient builder has not been registered:\s*(\S+)(?: for node\s*(\S+))?")


def check_optimizer(name: str) -> None:
    """Raise ConfigError when there is no such optimizer."""
    if name not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise ConfigError(f"there is no optimizer {name!r}", where="optimizer", remedy=f"one of {known}")


def generate(
    model: onnx.ModelProto, *, trainable: Sequence[str], frozen: Sequence[str], optimizer: str, out: Path
) -> None:
    """Write upstream's four files for `model`, whose only output is the loss, into directory `out`.

    Raises
    ------
    UnavailableError
        Without the training build of onnxruntime.
    BundleError
        When an operator has no gradient, or the loss does not depend on a trainable parameter.
    """
    artifacts = training_api.load("artifacts")
    _restart_numbering()
    try:
        with _quiet():
            artifacts.generate_artifacts(
                model,
                requires_grad=list(trainable),
                frozen_params=list(frozen),
                loss=None,
                optimizer=artifacts.OptimType[OPTIMIZERS[optimizer]],
                artifact_directory=str(out),
            )
    except (*ort.ERRORS, onnx.checker.ValidationError, LookupError) as problem:
        raise _refusal(model, problem) from problem
    for name in (TRAINING, EVALUATION, OPTIMIZER):
        make_readable(out / name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the generator's messages off stderr: it logs at INFO past every setting and leaves it so.

    They are written by native code, so it is the file descriptor that has to be turned away; what went
    wrong is raised besides being logged.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        onnxruntime.set_default_logger_severity(_ERROR_SEVERITY)


def make_readable(path: Path) -> int | None:
    """Lower the IR version of a file where it is too new for the runtime; the version it had, then.

    Operator domains that no node uses are left out too.
    """
    model = onnx.load(str(path))
    old = int(model.ir_version)
    used = {node.domain for node in model.graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    if old <= MAX_IR_VERSION and len(kept) == len(model.opset_import):
        return None
    model.ir_version = min(old, MAX_IR_VERSION)
    del model.opset_import[:]
    model.opset_import.extend(kept)
    onnx.save(model, str(path))
    return old if old > MAX_IR_VERSION else None


def _restart_numbering() -> None:
    # Names of generated tensors end in a number that counts on for the life of the process.
    vars(training_api.load("onnxblock._graph_utils"))["_GRAPH_TOKEN"] = 0


def _refusal(model: onnx.ModelProto, problem: Exception) -> BundleError:
    text = ort.one_line(problem, limit=600)
    if found := _NO_GRADIENT.search(text):
        operator = found[1].rstrip(".,")
        names = [node.name for node in model.graph.node if node.op_type == operator]
        return BundleError(
            f"operator {operator} cannot be trained through",
            where=f"node {', '.join(names[:3])}" if names else f"operator {operator}",
            remedy="freeze what is before it, or express it by other operators",
        )
    if isinstance(problem, LookupError):
        return BundleError(
            f"the loss does not depend on {text}",
            where="trainable parameters",
            remedy="freeze it with --freeze",
        )
    return BundleError(f"the artifacts cannot be generated: {text[:240]}", where=str(model.graph.name))
