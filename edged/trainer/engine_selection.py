"""Which engine trains where the configuration says `auto`: the faster one, timed once and remembered.

Timing needs both engines in memory and native code of each, so a child process does it
(`python -m edged.trainer.engine_selection`): what it takes is gone afterwards, and a crash ends nothing else.

The answer is stored in `engine-choice.json` of the state directory and holds until the bundle, the runtime,
the size of a step or the machine changes: the engine does not change from run to run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.domain.child_orders import Order
from edged.domain.training.message import Message
from edged.engines import candidates, reason_for, usual_engine
from edged.engines.benchmark import Timing, Workload, measure
from edged.engines.runtime.ort import onnxruntime
from edged.errors import CorruptError, EdgedError, StorageError, UnavailableError
from edged.host.child_process import carry_out, run_order
from edged.storage.files.atomic import publish_file
from edged.storage.files.checksummed_json import read_sealed, seal
from edged.storage.models.bundles import Bundle

if TYPE_CHECKING:
    from edged.config import TrainingConfig

FORMAT = 1
FILE = "engine-choice.json"
# Some steps of both engines take about a second; a model of which a step takes seconds still has time.
SECONDS = 120.0
NICE = 10
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class EngineChoice:
    """The engine to use, the reason, and the times behind it, if any; `new` if they were taken just now."""

    engine: str
    reason: str
    timing: Timing | None = None
    new: bool = False

    def line(self) -> str:
        """Describe the choice in one line.

        >>> EngineChoice("native", "measured faster", Timing({"portable": 74.2, "native": 58.4}, 64)).line()
        'native (measured faster: portable 74 µs, native 58 µs a step of 64 rows)'
        """
        times = f": {self.timing.line()}" if self.timing is not None else ""
        return f"{self.engine} ({self.reason}{times})"


@dataclass(frozen=True)
class EngineTimes(Message):
    """Microseconds of a step by engine."""

    us: Mapping[str, float]


@dataclass(frozen=True)
class MeasureEngines(Order[EngineTimes]):
    """The order to the child process: time these engines on the steps of a bundle."""

    bundle: Path
    names: tuple[str, ...]
    work: Workload


def choose(
    config: TrainingConfig,
    bundle: Bundle,
    state: Path,
    *,
    remember: bool = True,
    warn: Callable[[str], None] = lambda _: None,
) -> EngineChoice:
    """Choose the engine for this bundle under this configuration.

    An earlier answer lies in the directory `state`; with `remember` a new one is written there. `warn`
    receives one line if the engines could not be timed: why. `open_engine` takes the engine's name;
    whether it opens has still to be seen.
    """
    names = candidates(bundle, config.provider)
    if config.engine != "auto" or len(names) < 2:
        name = usual_engine(bundle, config.provider)[0] if config.engine == "auto" else config.engine
        return EngineChoice(name, reason_for(config.engine, bundle, config.provider))
    work = Workload(config.batch, config.threads, config.accumulate)
    file, key = state / FILE, _key(bundle, work)
    timing = _recall(file, key, warn)
    if timing is not None:
        return EngineChoice(timing.fastest, "measured faster", timing)
    try:
        timing = _time_in_child(bundle, work, names)
    except UnavailableError as problem:
        name, why = usual_engine(bundle)
        warn(problem.line())
        return EngineChoice(name, f"{why}; {problem.what}")
    if remember:
        _write(file, key, timing, warn)
    return EngineChoice(timing.fastest, "measured faster", timing, new=True)


# ---- remembering -----------------------------------------------------------------------------


def _key(bundle: Bundle, work: Workload) -> dict[str, Any]:
    """What the times depend on: an answer holds as long as all of it is the same."""
    return {
        "format": FORMAT,
        "bundle": bundle.fingerprint,
        "onnxruntime": onnxruntime.__version__,
        "cpu": _cpu(),
        **asdict(work),
    }


def _cpu() -> str:
    """Return the processor's name, or the kind of machine if the kernel does not tell it."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, os.uname().machine)


def _recall(file: Path, key: dict[str, Any], warn: Callable[[str], None]) -> Timing | None:
    if not file.exists():
        return None
    try:
        kept = read_sealed(file)
    except CorruptError as problem:
        warn(f"{problem.line()}; the engines are timed again")
        return None
    return Timing(kept["us"], kept["key"]["batch"]) if kept.get("key") == key else None


def _write(file: Path, key: dict[str, Any], timing: Timing, warn: Callable[[str], None]) -> None:
    try:
        publish_file(file, seal({"key": key, "us": timing.us}))
    except StorageError as problem:
        # The answer is known all the same, and training will say more of a disk that refuses.
        warn(f"{problem.line()}; the engines are timed again next time")


# ---- the child process -----------------------------------------------------------------------


def _time_in_child(bundle: Bundle, work: Workload, names: tuple[str, ...]) -> Timing:
    order = MeasureEngines(bundle.path, names, work)
    try:
        return Timing(dict(run_order("edged.trainer.engine_selection", order, SECONDS).us), work.batch)
    except EdgedError as problem:
        raise _untimed(problem.line()) from problem


def _untimed(why: str) -> UnavailableError:
    return UnavailableError("the engines could not be timed", where="training.engine", remedy=why)


def _measure(order: MeasureEngines) -> EngineTimes:
    os.nice(max(0, NICE - os.nice(0)))
    return EngineTimes(measure(Bundle.open(order.bundle, verify=False), order.names, order.work).us)


def main() -> int:
    """Time the engines that the order on stdin names; the exit code."""
    return carry_out((MeasureEngines,), _measure)


if __name__ == "__main__":
    sys.exit(main())
