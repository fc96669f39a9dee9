"""One succession at a time, with a fault at one stage of it, in a process of its own.

`python -m tests.faults.episodes` reads `{"stage", "fault", "folder"}` lines, forks for each, and answers
each with `{"code", ...what the episode told}`. The parts are the daemon's own; faults come in through
what a composition hands them: the loader of models, the holdout, the disk, and the labels.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged import logs
from edged.clock import VirtualClock
from edged.config import GateConfig, ServingConfig
from edged.device.events import Events
from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_store import ModelStore
from edged.device.promotion.rollout import Rollout
from edged.device.serving.predictor import Predictor
from edged.device.serving.worker import ServingWorker
from edged.domain.judging.latencies import Latencies
from edged.engines.inference import InferenceModel
from edged.errors import ModelError, StorageError
from edged.storage.files.atomic import Disk
from edged.storage.models.registry import Registry
from tests.constants import section
from tests.device.gates import Gate, configured
from tests.device.linear import BAD, GOOD, SCHEMA, candidate, classes, inputs, samples
from tests.device.partners import Recorder, Supervisor, no_requests, watchdog

if TYPE_CHECKING:
    from edged.domain.protocols import ServedModel
    from edged.domain.stream.sample import Window
    from tests.device.linear import Floats

STAGES = ("verify", "stage", "load", "warm-up", "gate", "pointer", "probation")
FAULTS = ("error", "kill", "ENOSPC", "timeout")
OLD, NEW = 1, 2
ROWS, PROBATION = 20, 60


class Seam:
    """Where the fault comes in: `hit(stage)` is called at every stage, once it acts."""

    def __init__(self, stage: str, fault: str) -> None:
        self.stage, self.fault = stage, fault
        self.armed = True
        self.full = False
        self.slow: Callable[[], None] = lambda: None

    def hit(self, stage: str) -> None:
        if stage != self.stage or not self.armed:
            return
        self.armed = False
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "ENOSPC":
            self.fill(full=True)
        if self.fault == "timeout":
            self.slow()
        if self.fault == "error":
            if stage in ("stage", "pointer"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            raise StorageError("unreadable") if stage == "gate" else ModelError("unusable")

    def fill(self, *, full: bool) -> None:
        """No space left, for files and for SQLite's own writes; or space again."""
        self.full = full
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0 if full else hard, hard))


class SeamDisk(Disk):
    """A disk that is full when the seam says so."""

    def __init__(self, seam: Seam) -> None:
        self._seam = seam

    def write(self, path: Path, data: bytes) -> None:
        self._seam.hit("pointer" if path.name.startswith(".staging-champion") else "stage")
        if self._seam.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(path, data)


class SeamModel:
    """A model whose first prediction may be what hangs or fails."""

    def __init__(self, path: Path, seam: Seam) -> None:
        self._model, self._seam = InferenceModel(path), seam

    def predict(self, x: Floats) -> Floats:
        self._seam.hit("warm-up")
        return self._model.predict(x)


class Episode(Supervisor, Recorder):
    """A daemon's serving and promotion without its network, under load all the while."""

    def __init__(self, folder: Path, stage: str, fault: str) -> None:
        super().__init__()
        self.seam = Seam("off", fault)
        self.gate = Gate(folder, GOOD if stage == "probation" else BAD)
        self.gate.registry.close()
        self.stage, self.fault, self.folder = stage, fault, folder
        hanging = fault == "timeout" and stage not in ("stage", "pointer")
        settings = {
            "latency": 30.0, "timeout": 1.0 if hanging else 60.0, "probation": PROBATION,
            "probation_time": 0.5 if (stage, fault) == ("probation", "timeout") else 3600.0,
        }  # fmt: skip
        rules: GateConfig = section("gate", settings)
        self.registry = Registry.open(folder, disk=SeamDisk(self.seam))
        config = configured(folder, SCHEMA, settings)
        clock = VirtualClock(1000.0)
        evaluator = CandidateEvaluator(config, self.registry, self, self)
        models = ModelStore(config, self.registry, self, clock)
        self.predictor = Predictor(ServingConfig(), rules, SCHEMA, models.boot(self.gate.base))
        self.rollout = Rollout(evaluator, models, self.predictor, Events(self))
        self.decided_at = self.back_at = 0.0
        self.submitted = 0
        self.has_labels = False
        self._ending = threading.Event()
        self.loop = ServingWorker(
            self.predictor, batch=64, boot=1, supervisor=self,
            requester=no_requests(SCHEMA, VirtualClock()), events=Events(self),
            watchdog=watchdog(), latencies=Latencies(),
        )  # fmt: skip

    # ---- what the parts are handed ---------------------------------------------------------

    def breathe(self) -> None: ...

    def load(self, path: Path) -> InferenceModel | SeamModel:
        if path.parent.parent == self.gate.candidates:
            self.seam.hit("verify")
        elif path.parent.name == str(NEW):
            self.seam.hit("load")
            return SeamModel(path, self.seam)
        return InferenceModel(path)

    def training_window(self, after_seq: int, limit: int, *, upto_seq: int | None = None) -> Window:
        del after_seq, upto_seq  # all rows are alike
        return self.holdout_window(limit)

    def holdout_window(self, limit: int, *, before_seq: int | None = None) -> Window:
        self.seam.hit("gate")
        window = self.gate.log.holdout_window(limit, before_seq=before_seq)
        # For the probation: what is right on the holdout is wrong on live samples.
        return replace(window, y=1 - window.y) if self.stage == "probation" else window

    def older_holdout(self, limit: int, before_seq: int) -> Window:
        return self.gate.log.older_holdout(limit, before_seq)

    def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
        return self.rollout.rescue(failing, reason)

    def probation_ended(self, version: int, passed: bool) -> None:
        """As in the daemon, another thread carries out what the serving loop finds."""
        self.decided_at = time.monotonic()

        def carry_out() -> None:
            if self.stage == "probation" and self.fault == "ENOSPC":
                self.seam.fill(full=True)
            if self.stage == "probation" and self.fault == "kill":
                self.seam.stage = "pointer"
            self.rollout.probation_ended(version, passed)

        threading.Thread(target=carry_out).start()

    # ---- the episode -----------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        self.loop.start()
        feeder = threading.Thread(target=self._feed)
        feeder.start()
        until(lambda: len(self.published) > 5 * ROWS)
        self.seam.slow = self._wait_for_answers
        self.seam.stage = self.stage
        started = time.monotonic()
        self.rollout.consider(candidate(self.gate.candidates, 1, self._slope()))
        if self.stage == "probation":
            self._probation()
        took = time.monotonic() - started
        self.seam.fill(full=False)
        settled = self.rollout.persist()
        last = self.predictor.champion.version
        until(lambda: self.published[-1]["model"] == last)
        self._ending.set()
        feeder.join()
        until(lambda: len(self.published) >= self.submitted)
        self.loop.stop()
        return {
            "serving": last, "champion": self.registry.champion(), "settled": settled,
            "took": took, "back_after": self.back_at - self.decided_at,
            "submitted": self.submitted, "answered": len({p["id"] for p in self.published}),
            "published": len(self.published), "errors": self.loop.errors,
            "told": [name for name, _ in self.events],
            "hit": not self.seam.armed or self.stage == "probation",
        }  # fmt: skip

    def _slope(self) -> float:
        """Better than what serves on the holdout."""
        return BAD if self.stage == "probation" else GOOD

    def _probation(self) -> None:
        """The promoted model meets live labels that it gets wrong and its predecessor right, or none."""
        promoted = self.predictor.champion.version
        if self.fault == "timeout":
            until(lambda: self.predictor._probation is None)  # noqa: SLF001  nothing tells of it
            return
        self.has_labels = True
        until(lambda: self.predictor.champion.version != promoted)
        self.back_at = time.monotonic()

    def _feed(self) -> None:
        while not self._ending.wait(0.002):
            x = inputs(ROWS, self.submitted)
            truth: list[Any] = classes(x) if self.has_labels else [None] * ROWS
            self.loop.submit(samples(1 + self.submitted, x, truth), np.full(ROWS, time.monotonic()))
            self.submitted += ROWS

    def _wait_for_answers(self) -> None:
        """Hang for longer than the gate's timeout, and until serving has answered a good deal meanwhile."""
        before, until_then = len(self.published), time.monotonic() + 1.5
        until(lambda: len(self.published) > before + 20 * ROWS and time.monotonic() > until_then)


def until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


def _in_fork(order: dict[str, str], writing: int) -> None:
    code = 1
    try:
        told = Episode(Path(order["folder"]), order["stage"], order["fault"]).run()
        os.write(writing, json.dumps(told).encode())
        code = 0
    except BaseException:  # noqa: BLE001  this process must not go on as a second server
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Take orders; each is carried out in a fork, which has neither threads nor models yet."""
    logs.configure("error")  # what is expected is not worth a line
    for line in sys.stdin:
        order = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _in_fork(order, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            told = answer.read()
        _, status = os.waitpid(pid, 0)
        values = json.loads(told) if told else {}
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), **values}), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
