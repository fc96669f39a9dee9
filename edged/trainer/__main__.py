"""The trainer process: `python -m edged.trainer`, which the daemon starts through `edged.host.oom_first`.

Reads messages of `edged.domain.training.trainer_messages` as JSON lines on stdin: first a `Setup`, then one
order after the other, and `Pace` or `WriteCheckpoint` at any time, see `OrderReader`. Writes such lines on
stdout: reports, and for each order its result or `OrderFailed`. Ends when stdin closes, when idle for
`training.resident` seconds (unless that is 0), or on SIGTERM (after a checkpoint).

Exit codes: 0 done or idle; 1 a run failed; 2 configuration or bundle unusable; 3 the bundle is not signed as
it must be; 4 engine not available here; 130 stopped in the middle of a run, after a checkpoint.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from edged.config import loader
from edged.domain.judging.overlap import block_of
from edged.domain.model_files import INT8, file_name, model_in
from edged.domain.training.message import decode, encode
from edged.domain.training.trainer_messages import (
    NO_DATA,
    ORDERS,
    AdoptInitial,
    AdoptModel,
    AdoptWeights,
    Note,
    OrderFailed,
    Pace,
    Ready,
    Resting,
    RunRequest,
    Setup,
    TrainRound,
    TryFleetModel,
    WriteCheckpoint,
)
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.onnx.base_model import BaseModel
from edged.engines.runtime import ort
from edged.errors import (
    BundleError,
    ConfigError,
    CorruptError,
    EdgedError,
    NoDataError,
    RefusedError,
    StorageError,
    TrainingError,
)
from edged.host.cpu_affinity import fitting, for_training
from edged.host.process_limits import ChildLimits, apply, die_with_parent
from edged.host.vitals import written_bytes
from edged.storage.files.atomic import scratch
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import champion_folder
from edged.storage.models.signatures import open_bundle
from edged.storage.samples.log import SampleLog
from edged.trainer import FleetUpdateTrainer, TrainingRun, taking_part
from edged.trainer.engine_selection import choose
from edged.trainer.foreign_weights import WeightImporter, weights_to_follow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.protocols import Engine
    from edged.domain.training.message import Message
    from edged.domain.training.training_run import Base
    from edged.storage.models.bundles import Bundle


MORE_MEMORY = "raise training.memory_limit or lower training.batch"
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
HALT_SECONDS = 10.0  # between two words that a halted run still lives


def say(message: Message) -> None:
    """One JSON line on stdout."""
    sys.stdout.write(encode(message).decode())
    sys.stdout.flush()


class OrderReader:
    """Messages from stdin, with a limit on idling and a flag for SIGTERM.

    A `Pace` or a `WriteCheckpoint` may come at any time, also within a run.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._pace: float | None = 0.0
        self._ended = False
        self._checkpoint = False
        self.stop = False
        # A signal does not end a select() by itself; a byte in this pipe does.
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.stop = True

    def next(self, idle: float | None) -> Message | None:
        """The next order; None at the end of input, after `idle` seconds, or when stopped."""
        while True:
            while b"\n" not in self._buffer:
                if not self._read(idle):
                    return None
            line, _, self._buffer = self._buffer.partition(b"\n")
            order = _decoded(line)
            if not self._took(order):
                return order

    def _read(self, seconds: float | None) -> bool:
        """Wait for more input; False at its end, after that time, or when stopped."""
        ready = select.select([0, self._woken], [], [], seconds)[0]
        if self.stop or 0 not in ready:
            return False
        chunk = os.read(0, 1 << 16)
        self._ended = not chunk
        self._buffer += chunk
        return bool(chunk)

    def rest(self, spent: float) -> None:
        """After a step of that many seconds: rest as long as the pace asks for."""
        self._hear()
        until = time.monotonic() + spent * (self._pace or 0.0)
        while not (self.stop or self._ended):
            left = until - time.monotonic()
            if self._pace is None:
                say(Resting())
                left = HALT_SECONDS
            elif left <= 0:
                return
            if self._read(left):
                self._hear()
                until = time.monotonic() + spent * (self._pace or 0.0)

    def _hear(self) -> None:
        """Take the newest pace out of what has come; orders stay."""
        while not self._ended and select.select([0], [], [], 0)[0] and self._read(0):
            pass
        *lines, rest = self._buffer.split(b"\n")
        orders = [line + b"\n" for line in lines if not self._took(_decoded(line))]
        self._buffer = b"".join(orders) + rest

    def _took(self, order: Message) -> bool:
        """Whether this was about the run under way, and is noted."""
        if isinstance(order, Pace):
            self._pace = order.rest
        elif isinstance(order, WriteCheckpoint):
            self._checkpoint = True
        return isinstance(order, Pace | WriteCheckpoint)

    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint was asked for since this was last asked."""
        wanted, self._checkpoint = self._checkpoint, False
        return wanted


def _decoded(line: bytes) -> Message:
    return decode(json.loads(line), ORDERS)


def open_trainee(
    config: Config, orders: OrderReader, base: Base
) -> tuple[TrainingRun, WeightImporter, FleetUpdateTrainer | None]:
    """Everything a run needs, from the resolved configfile, and what takes weights from elsewhere.

    The third is the part in a fleet's rounds, where there is one. `base` is what the first run begins with.
    """
    if config.model.bundle is None:
        raise ConfigError("the trainer needs a bundle", where="model.bundle")
    bundle = open_bundle(config.model.bundle, config.model.keys)
    schema = config.stream.to_schema()
    bundle.check_schema(schema)
    state, training = config.storage.dir, config.training
    if training.guide != "none" and training.engine == "auto":
        training = training.model_copy(update={"engine": "portable"})
    chosen = choose(training, bundle, state, note=lambda what: say(Note(what)))

    def begin() -> Engine:
        return open_engine(chosen.engine, bundle, training.threads, providers=training.provider)

    engine, quantised = begin(), _quantiser(config, bundle)
    samples = SampleLog.open(state / "samples.db", schema, readonly=True)

    def load_model(path: Path) -> InferenceModel:
        return InferenceModel(path, threads=1)

    adopter = WeightImporter(
        schema=schema,
        bundle=bundle,
        engine=engine,
        holdout=samples,
        state=state,
        load_model=load_model,
        max_bytes=config.weights.max_bytes,
        quantised=quantised,
    )
    trainee = TrainingRun(
        config=training,
        schema=schema,
        bundle=bundle,
        engine=engine,
        samples=samples,
        checkpoints=Checkpoints(state / "checkpoints", training.keep_checkpoints),
        candidates=state / "candidates",
        load_model=load_model,
        pack_weights=_packer(config, engine),
        report=say,
        stopping=lambda: orders.stop,
        rest=orders.rest,
        champion=lambda: champion_folder(state),
        elsewhere=lambda followed: weights_to_follow(state, bundle, followed),
        wanted=orders.wants_checkpoint,
        base=base,
        block=block_of(config.stream.window_rules),
        fresh=None if schema.labels_itself else begin,
        quantised=quantised,
    )
    if base == "champion":
        trainee.start_with(_champions_weights(state, bundle))
    if config.fleet is None:
        return trainee, adopter, None
    part = taking_part(
        config, bundle, chosen.engine, trainee, samples,
        own=adopter.own, load_model=load_model, rest=orders.rest, stopping=lambda: orders.stop,
    )  # fmt: skip
    return trainee, adopter, part


def _champions_weights(state: Path, bundle: Bundle) -> dict[str, NDArray[np.float32]]:
    from edged.engines import model_parameters
    from edged.engines.onnx import exported
    from edged.mqtt.weight_encoding import unpack

    folder = champion_folder(state)
    if folder is None:
        raise TrainingError("no model is being served to begin with", where="from: champion")
    path = model_in(folder)
    if ort.in_ort_format(path):
        return model_parameters.parameters_of(folder, bundle, lambda blob: unpack(blob)[0])
    return exported.parameters_in(path, (*bundle.trainable, *bundle.frozen))


def _quantiser(
    config: Config, bundle: Bundle
) -> Callable[[Mapping[str, NDArray[np.float32]]], dict[str, bytes]]:
    """Makes the file of a model's quantised form; no file where models are not to be served so, or cannot."""
    base = BaseModel.of_form(bundle, INT8) if config.serving.quantise == INT8 else None
    if base is None:
        return lambda _: {}
    name = file_name(base.suffix, INT8)
    return lambda parameters: {name: bytes(base.with_parameters(parameters))}


def _packer(config: Config, engine: Engine) -> Callable[[Mapping[str, NDArray[np.float32]]], bytes] | None:
    """Writes weights beside a model: where they are published, and where nothing could read them from it."""
    if not config.report.weights and engine.name != "native":
        return None
    from edged.mqtt.weight_encoding import pack

    return lambda parameters: pack(parameters, {"device": config.device.id})


def complaint(problem: EdgedError, reason: str = "") -> OrderFailed:
    """What the daemon is told of an error."""
    return OrderFailed(problem.what, problem.where, problem.remedy, reason or type(problem).__name__)


def _foreign(problem: Exception) -> EdgedError:
    """An error that is not our own, in one line."""
    text = " ".join(str(problem).split()) or "no message"
    if isinstance(problem, OSError) and problem.errno in DISK_ERRORS:
        return StorageError(text, where="trainer")
    if isinstance(problem, OSError) and problem.errno == errno.ENOMEM:
        return TrainingError(text, remedy=MORE_MEMORY)
    if isinstance(problem, ImportError) and "failed to map segment" in text:
        return TrainingError(f"out of memory: {text}", remedy=MORE_MEMORY)
    return TrainingError(f"{type(problem).__name__}: {text}", where="trainer")


def serve(orders: OrderReader) -> int:
    """Take orders until there are no more; the exit code."""
    first = orders.next(None)
    if first is None:
        return 0
    if not isinstance(first, Setup):
        raise TrainingError(f"expected Setup as the first message, got {type(first).__name__}", where="stdin")
    config = loader.from_json(first.config)
    training = config.training
    limits = ChildLimits(
        nice=training.nice,
        affinity=for_training(training.affinity, training.threads),
        memory_limit=training.memory_limit,
        idle_cpu=training.scheduling == "idle",
    )
    for warning in apply(limits):
        say(Note(warning))
    threads = fitting(training.threads)
    if threads < training.threads:
        say(Note(f"training.threads: there are processors for {threads} only"))
        training = training.model_copy(update={"threads": threads})
        config = config.model_copy(update={"training": training})
    with nullcontext() if first.durable else scratch():
        return _take(config, orders, first.base)


def _take(config: Config, orders: OrderReader, base: Base) -> int:
    """Carry out one after the other."""
    trainee, adopter, part = open_trainee(config, orders, base)
    say(Ready(os.getpid()))
    code = 0
    while (order := orders.next(config.training.resident or None)) is not None:
        try:
            say(_carry_out(order, trainee, adopter, part))
            code = 0
        except NoDataError as problem:
            say(OrderFailed(problem.line(), reason=NO_DATA, consumed=trainee.consumed))
        except RefusedError as problem:  # what came from elsewhere was no good; nothing is wrong here
            say(complaint(problem))
        except EdgedError as problem:
            say(complaint(problem))
            return problem.exit_code
    return code


def _carry_out(
    order: Message, trainee: TrainingRun, adopter: WeightImporter, part: FleetUpdateTrainer | None
) -> Message:
    """The result of an order."""
    match order:
        case TrainRound() if part is not None:
            return part.contribute(order)
        case TryFleetModel():
            return adopter.of_fleet(order)
        case AdoptInitial():
            return adopter.initial(order)
        case AdoptModel():
            return adopter.model(order)
        case AdoptWeights():
            return adopter.apply(order)
        case RunRequest():
            before = written_bytes()
            result = trainee.run(order)
            after = written_bytes()
            return replace(result, written=None if before is None or after is None else after - before)
    raise TrainingError(f"no order that is carried out here: {type(order).__name__}", where="stdin")


def main() -> int:
    """Entry point of the process."""
    die_with_parent()
    try:
        return serve(OrderReader())
    except EdgedError as problem:
        say(complaint(problem))
        return 2 if isinstance(problem, BundleError | CorruptError) else problem.exit_code
    except MemoryError:
        say(complaint(TrainingError("out of memory", remedy=MORE_MEMORY), "MemoryError"))
        return 1
    except BrokenPipeError:
        return 0
    except Exception as problem:  # noqa: BLE001  the top of the process
        # One line for the daemon, whatever it was; the rest is in the log.
        traceback.print_exc()
        told = _foreign(problem)
        say(complaint(told, "" if isinstance(told, StorageError) else type(problem).__name__))
        return 1


if __name__ == "__main__":
    sys.exit(main())
