"""Rounds for a program on this machine, such as Flower's ClientApp.

The device trains from weights that the program sends, judges such weights, and offers them to its gate.
Nothing else brings them into service.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from edged.config import FleetConfig
from edged.device.events import Extension
from edged.device.fleet_member.round_executor import RoundExecutor
from edged.device.learning.trainer_slot import StoppedRunError
from edged.domain.events import FleetDeclined, FleetFailed, FleetModelJudged, FleetTrained
from edged.domain.federated.round_orders import FitRequest, FleetModelResult, TrainedWeights, TrialRequest
from edged.domain.training.weight_coding import Weights, fingerprint
from edged.errors import EdgedError, NoDataError, RefusedError, UnavailableError
from edged.mqtt import weight_encoding
from edged.storage.models.fleet import FleetModels

R = TypeVar("R")


class LocalRounds(Extension):
    """Carries out requests one by one between training runs, on the learning thread.

    Requests return a future at once. It raises RefusedError when the device declines, UnavailableError when
    the daemon or the run stops, other EdgedErrors when the request fails; see `TrainerClient.run`. It can be
    cancelled until the work has begun. Weights that the device returns are safetensors, float32.
    """

    def __init__(self, config: FleetConfig, work: RoundExecutor, state: Path) -> None:
        self._config, self._work = config, work
        self._models = FleetModels(state)
        self._pending: set[Future[Any]] = set()
        self._stopping = False

    def initial(self) -> bytes:
        """Return the trainable weights that the device's bundle begins with; no sample has changed them.

        Raises EdgedError when the bundle cannot be read.
        """
        return weight_encoding.to_safetensors(self._work.initial_weights())

    def train(self, settings: FitRequest, weights: Weights) -> Future[tuple[TrainedWeights, bytes]]:
        """Train from these weights on the device's own samples; the future gives the trained weights."""
        return self._between_runs(settings.round, lambda: self._train(settings, weights))

    def evaluate(self, trial: TrialRequest, weights: Weights) -> Future[FleetModelResult]:
        """Judge these weights on the device's holdout, and offer them to the gate if `trial` says so."""
        return self._between_runs(trial.round, lambda: self._judge(trial, weights))

    def stop(self) -> None:
        """Accept no further request, and let those in progress fail."""
        self._stopping = True
        for future in list(self._pending):
            if not future.cancel():
                with suppress(InvalidStateError):
                    future.set_exception(_stopping())

    # ---- on the learning thread ------------------------------------------------------------

    def _train(self, settings: FitRequest, weights: Weights) -> tuple[TrainedWeights, bytes]:
        reason = self._work.why_not() if self._config.train else "fleet.train is false"
        if reason:
            raise RefusedError(reason, where="fleet")
        digest, model = self._kept(weights)
        made = self._work.train_from(settings, digest, model, self._models.trained)
        trained = self._models.take_trained()
        if made.quality is None:
            raise RefusedError("the loss of the trained weights is not finite", where="fleet")
        self._work.event(FleetTrained(settings.round, made.samples, made.steps, len(trained), made.norm))
        return made, trained

    def _judge(self, trial: TrialRequest, weights: Weights) -> FleetModelResult:
        digest, model = self._kept(weights)
        found = self._work.judge(trial.round, None, (digest, model), offer=trial.offer)
        if trial.offer:
            self._work.event(FleetModelJudged(trial.round, digest, found.taken, found.reason))
        if found.samples_judged == 0:
            raise NoDataError("no held-out labelled sample to judge weights on", where="sample log")
        if found.model is None:
            raise RefusedError("the loss of the weights is not finite", where="fleet")
        return found

    def _kept(self, weights: Weights) -> tuple[str, Path]:
        """Store received weights unless they are there; return their fingerprint and file."""
        digest = fingerprint(weights)
        there = self._models.path(digest)
        return digest, there or self._models.put(digest, weight_encoding.pack(weights))

    def _between_runs(self, number: int, work: Callable[[], R]) -> Future[R]:
        future: Future[R] = Future()
        if self._stopping:
            future.set_exception(_stopping())
            return future

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as problem:
                self._fail(future, number, problem)
                if not isinstance(problem, EdgedError):
                    raise
            else:
                with suppress(InvalidStateError):  # the daemon stops
                    future.set_result(result)

        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._work.between_runs(job)
        return future

    def _fail(self, future: Future[R], number: int, problem: BaseException) -> None:
        if isinstance(problem, RefusedError | NoDataError):
            self._work.event(FleetDeclined(number, problem.line()))
            problem = RefusedError(problem.what, where=problem.where, remedy=problem.remedy)
        elif isinstance(problem, StoppedRunError):
            problem = UnavailableError("the run was stopped", where="fleet", remedy="try again later")
        elif isinstance(problem, EdgedError):
            self._work.event(FleetFailed(number, problem.line()))
        with suppress(InvalidStateError):
            future.set_exception(problem)


def _stopping() -> UnavailableError:
    return UnavailableError("the daemon is stopping", where="fleet", remedy="try again once it runs")
