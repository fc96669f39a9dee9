"""The trainer process: `python -m edged.trainer`, which the daemon starts through `edged.host.oom_first`.

Reads messages of `edged.domain.training.trainer_messages` as JSON lines on stdin: first a `Setup`, then one
order after the other, and `Pace` or `WriteCheckpoint` at any time, see `DaemonPipe`. Writes such lines on
stdout: reports, and for each order its result or `OrderFailed`. Ends when stdin closes, when idle for
the constant `resident` of its configuration (unless that is 0), or on SIGTERM (after a checkpoint).

Exit codes: 0 done or idle; 1 a run failed; 2 configuration or bundle unusable; 3 the bundle is not signed as
it must be; 4 engine not available here; 130 stopped in the middle of a run, after a checkpoint.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import nullcontext

from edged.config import loader
from edged.domain.child_orders import OrderFailed
from edged.domain.training import trainer_messages as messages
from edged.errors import (
    BundleError,
    CorruptError,
    EdgedError,
    NoDataError,
    RefusedError,
    StorageError,
    TrainingError,
)
from edged.host.limits import VARIABLE, apply, die_with_parent
from edged.storage.files.atomic import scratch
from edged.trainer.daemon_pipe import DaemonPipe
from edged.trainer.trainer import Trainer

NICE = 10
MORE_MEMORY = "raise training.memory or lower training.batch"
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


def main() -> int:
    """Entry point of the process."""
    die_with_parent()
    pipe = DaemonPipe()
    try:
        return serve(pipe)
    except EdgedError as problem:
        pipe.report(OrderFailed.of(problem))
        return 2 if isinstance(problem, BundleError | CorruptError) else problem.exit_code
    except MemoryError:
        pipe.report(OrderFailed.of(TrainingError("out of memory", remedy=MORE_MEMORY), "MemoryError"))
        return 1
    except BrokenPipeError:
        return 0
    except Exception as problem:  # noqa: BLE001  the top of the process
        # One line for the daemon, whatever it was; the rest is in the log.
        traceback.print_exc()
        error = _foreign(problem)
        pipe.report(OrderFailed.of(error, "" if isinstance(error, StorageError) else type(problem).__name__))
        return 1


def serve(pipe: DaemonPipe) -> int:
    """Set the process up as the first message says, and execute orders; the exit code."""
    first = pipe.next_order(None)
    if first is None:
        return 0
    if not isinstance(first, messages.Setup):
        raise TrainingError(f"expected Setup as the first message, got {type(first).__name__}", where="stdin")
    config = loader.from_json(first.config, first.constants)
    training = config.training
    limit = None if VARIABLE in os.environ else training.memory
    for warning in apply(nice=NICE, idle_cpu=training.priority == "idle", memory_limit=limit):
        pipe.report(messages.LogLine(warning))
    with nullcontext() if first.durable else scratch():
        return _execute_all(Trainer(config, pipe, first), pipe, training.constants.resident or None)


def _execute_all(trainer: Trainer, pipe: DaemonPipe, idle: float | None) -> int:
    pipe.report(messages.Ready(os.getpid()))
    code = 0
    while (order := pipe.next_order(idle)) is not None:
        try:
            pipe.report(trainer.execute(order))
            code = 0
        except NoDataError as problem:
            consumed = trainer.learner.state.consumed
            pipe.report(OrderFailed(problem.line(), reason=messages.NO_DATA, consumed=consumed))
        except RefusedError as problem:  # what came from elsewhere was no good; nothing is wrong here
            pipe.report(OrderFailed.of(problem))
        except EdgedError as problem:
            pipe.report(OrderFailed.of(problem))
            return problem.exit_code
    return code


def _foreign(problem: Exception) -> EdgedError:
    """Describe an error that is not our own, in one line."""
    text = " ".join(str(problem).split()) or "no message"
    if isinstance(problem, OSError) and problem.errno in DISK_ERRORS:
        return StorageError(text, where="trainer")
    if isinstance(problem, OSError) and problem.errno == errno.ENOMEM:
        return TrainingError(text, remedy=MORE_MEMORY)
    if isinstance(problem, ImportError) and "failed to map segment" in text:
        return TrainingError(f"out of memory: {text}", remedy=MORE_MEMORY)
    return TrainingError(f"{type(problem).__name__}: {text}", where="trainer")


if __name__ == "__main__":
    sys.exit(main())
