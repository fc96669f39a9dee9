"""Findings of the gate about a candidate: its integrity, and the comparison with the champion."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edged.config import Config, GateConfig
from edged.domain import outcomes
from edged.domain.arrays import quantiles
from edged.domain.bundle_contents import MODEL, PROBE_FILES
from edged.domain.judging.expert_mix import Mix, StreamModel, is_untrained, mix_of
from edged.domain.judging.gate import GateRules, ModelComparison
from edged.domain.judging.ridge_head import Learned
from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.protocols import Holdout, Model, ModelReader, ServedModel
from edged.domain.stream.sample import Window
from edged.domain.training.training_run import Candidate
from edged.errors import EdgedError, ModelError
from edged.host.waiting import within
from edged.storage.files.atomic import verify_directory
from edged.storage.models.registry import Registry

LATENCY_RUNS = 20
UNIT_ROWS = 1000  # newest samples by which the errors of a reconstruction are weighed


@dataclass(frozen=True)
class GateEvaluation:
    """A candidate, the champion that it was compared with, and the verdict.

    `scale` `(k,)` weighs errors. `failed` where the candidate could not be verified or compared: it is not
    worth keeping.
    """

    candidate: Candidate
    champion: ServedModel
    verdict: Verdict
    scale: NDArray[np.float32] | None = None
    failed: bool = False


class CandidateEvaluator:
    """Compares candidates with the champion by the configured rules.

    `registry` knows pinned versions. `holdout` has labelled rows that no model has learned from.
    `mix` are the weights of experts that serve now: what is compared is what would be served.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        holdout: Holdout,
        reader: ModelReader,
        mix: Mix | None = None,
    ) -> None:
        self._config = config.gate
        self._schema = schema = config.stream.to_schema()
        self._comparison = ModelComparison(schema, holdout, gate_rules(config.gate), reader)
        self._registry = registry
        self._holdout = holdout
        self._reader = reader
        self._mix = mix or mix_of(schema)

    def configure(self, config: GateConfig) -> None:
        """Judge by other rules from the next candidate on."""
        self._config = config
        self._comparison.rules = gate_rules(config)

    # ---- a candidate -----------------------------------------------------------------------

    def evaluate(self, candidate: Candidate, champion: ServedModel, *, first: bool = False) -> GateEvaluation:
        """Verify a candidate and compare it with the champion; `first` skips the comparison alone."""
        doing = "verification"
        try:
            model, seconds = within(self._config.constants.timeout, doing, lambda: self._verify(candidate))
            doing = "judging"
            verdict, scale = within(
                self._config.constants.timeout,
                doing,
                lambda: self._compare(model, champion, first=first),
            )
        except (EdgedError, OSError, ValueError, MemoryError) as problem:
            refused = refuse(f"{doing} failed: {line_of(problem)}")
            return GateEvaluation(candidate, champion, refused, failed=True)
        verdict = replace(verdict, numbers={**verdict.numbers, "latency_s": seconds})
        return GateEvaluation(candidate, champion, verdict, scale)

    def _verify(self, candidate: Candidate) -> tuple[Model, float]:
        """See that a candidate is whole, loads, gives the trainer's own outputs, and is fast enough.

        Returns the loaded model, and the median seconds of one prediction.

        Raises CorruptError when a file is missing or damaged; ModelError when it cannot be loaded or breaks
        one of the rules.
        """
        folder, where = candidate.folder, str(candidate.folder)
        schema, rules, breathe = self._schema, self._config.constants, self._reader.breathe
        verify_directory(folder)
        breathe()
        model = self._reader.load(folder / MODEL)
        x, expected = (np.load(folder / name, allow_pickle=False) for name in PROBE_FILES)
        # Context makes a row several times as wide.
        if x.ndim != 2 or x.shape[1] % schema.measured or len(x) == 0:
            raise ModelError(f"probe shape {x.shape}, the stream has {schema.measured} features", where=where)
        got = model.predict(x)
        if got.shape != expected.shape or got.shape[1] not in schema.output_widths:
            raise ModelError(f"output shape {got.shape}, the trainer had {expected.shape}", where=where)
        if not np.isfinite(got).all():
            raise ModelError("the model's outputs are not finite", where=where)
        worst = float(np.max(np.abs(got - expected) / np.maximum(1.0, np.abs(expected))))
        if not worst <= rules.tolerance:  # NaN must not pass
            raise ModelError(f"outputs differ from the trainer's by {worst:.2g}", where=where)
        breathe()
        seconds = _latency(model, x[:1])
        if seconds > rules.latency:
            raise ModelError(
                f"one prediction takes {seconds * 1e3:.1f} ms, {rules.latency * 1e3:.1f} ms allowed",
                where=where,
                remedy="use a smaller model",
            )
        learned = Learned.of(candidate.consumed, candidate.classes)
        return StreamModel.of(model, self._mix, learned=learned), seconds

    def _compare(
        self, model: Model, champion: ServedModel, *, first: bool = False
    ) -> tuple[Verdict, NDArray[np.float32] | None]:
        """The verdict on a loaded candidate, and what weighed the errors."""
        recent = self._holdout.holdout_window(self._config.constants.recent)
        self._reader.breathe()
        scale = self._scale(champion, recent)
        pinned = [] if first else self._registry.pinned()
        if pinned:
            return refuse(outcomes.pinned(pinned[0]), pinned=float(pinned[0])), scale
        if first or is_untrained(champion.model):
            return Verdict(True, (outcomes.FIRST,)), scale
        return self._comparison.evaluate(model, champion.model, recent, scale), scale

    def _scale(self, champion: ServedModel, recent: Window) -> NDArray[np.float32] | None:
        """Return the weights of errors; of reconstructions those of the first model, so scores compare."""
        if not self._schema.labels_itself:
            return self._comparison.scale(recent)
        if champion.scale is not None:
            return champion.scale
        return self._comparison.scale(self._holdout.training_window(0, UNIT_ROWS))


def gate_rules(config: GateConfig) -> GateRules:
    """Return the configured rules of the gate."""
    return GateRules(
        min_gain=config.min_gain,
        max_regret=config.constants.max_regret,
        min_holdout=config.min_holdout,
        significance=config.constants.significance,
    )


def line_of(problem: Exception) -> str:
    """Format an error in one line."""
    if isinstance(problem, EdgedError):
        return problem.line()
    return " ".join(str(problem).split()) or type(problem).__name__


def _latency(model: Model, x: NDArray[np.float32]) -> float:
    times = []
    for _ in range(LATENCY_RUNS):
        started = time.perf_counter()
        model.predict(x)
        times.append(time.perf_counter() - started)
    return float(quantiles(np.array(times), [0.5])[0])
