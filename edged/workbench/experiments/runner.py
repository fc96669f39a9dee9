"""Trainings in child processes, several at a time; one that fails never ends the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from edged.domain.training.message import decode
from edged.host.child_process import message_in, stop_process
from edged.workbench.experiments.job import EpochDone, TrialResult

if TYPE_CHECKING:
    from edged.workbench.experiments.job import TrialOrder

PATIENCE = 2.0  # seconds that an interrupted training has to go by itself


@dataclass(frozen=True)
class TrialOutcome:
    """How one training ended: its result, or why there is none."""

    order: TrialOrder
    result: TrialResult | None
    problem: str = ""


class TrialProgress(Protocol):
    """Receives the progress of trainings, from any thread."""

    def begin(self, orders: Sequence[TrialOrder]) -> None:
        """Receive all trainings, before the first begins."""

    def advanced(self, order: TrialOrder, point: EpochDone) -> None:
        """A training has ended an epoch."""

    def ended(self, order: TrialOrder) -> None:
        """A training has ended, one way or another."""


class Runner:
    """Runs trainings, at most `jobs` at a time, each ended when it takes longer than `timeout` seconds."""

    def __init__(self, jobs: int, timeout: float, progress: TrialProgress) -> None:
        self._jobs, self._timeout, self._progress = jobs, timeout, progress
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, orders: Sequence[TrialOrder]) -> list[TrialOutcome]:
        """How each training ended, in the order given. What interrupts it ends all of them first."""
        self._progress.begin(orders)
        # The threads outlive the processes that they start: these die with their thread, and so with us.
        with ThreadPoolExecutor(max_workers=self._jobs) as threads:
            futures = {threads.submit(self._train, order): i for i, order in enumerate(orders)}
            outcomes: dict[int, TrialOutcome] = {}
            try:
                for future in as_completed(futures):
                    outcomes[futures[future]] = future.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self._stop()
                raise
        return [outcomes[i] for i in range(len(orders))]

    def _train(self, order: TrialOrder) -> TrialOutcome:
        try:
            outcome = self._run(order)
        except OSError as problem:
            outcome = TrialOutcome(order, None, f"its process cannot be started: {problem.strerror}")
        self._progress.ended(order)
        return outcome

    def _run(self, order: TrialOrder) -> TrialOutcome:
        order.folder.mkdir()
        with (order.folder / "stderr").open("w+b") as complaints:
            process = self._start(complaints)
            if process is None:
                return TrialOutcome(order, None, "it was not begun")
            late = threading.Timer(self._timeout, process.kill)
            late.start()
            try:
                result = self._follow(process, order)
                code = process.wait()
            finally:
                timed_out = not late.is_alive()
                late.cancel()
                with self._lock:
                    del self._running[process.pid]
            if result is not None and code == 0:
                return TrialOutcome(order, result)
            complaints.seek(0)
            lines = complaints.read().decode(errors="replace").strip().splitlines()
        if timed_out:
            return TrialOutcome(order, None, f"it took longer than {self._timeout:g} s (timeout)")
        return TrialOutcome(order, None, lines[-1] if lines else _ending(code))

    def _start(self, complaints: Any) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "edged.workbench.experiments.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                # An interrupt from the keyboard is for us: we end them.
                start_new_session=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
            self._running[process.pid] = process
        return process

    def _follow(self, process: subprocess.Popen[bytes], order: TrialOrder) -> TrialResult | None:
        """Hand the order over and pass on what the training reports; its result."""
        result = None
        with process:
            if process.stdin is None or process.stdout is None:
                raise RuntimeError("the child has no pipes")
            try:
                process.stdin.write(json.dumps(order.to_json()).encode())
                process.stdin.close()
            except BrokenPipeError:
                return None
            for line in process.stdout:
                values = message_in(line)
                message = None if values is None else decode(values, (EpochDone, TrialResult))
                if isinstance(message, TrialResult):
                    result = message
                elif isinstance(message, EpochDone):
                    self._progress.advanced(order, message)
        return result

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running.values())
        for process in running:
            stop_process(process, PATIENCE)


def _ending(code: int) -> str:
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
