"""What the gate does with a candidate's files: verified, compared, and in which form it would serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.device.promotion.model_loader import line_of
from edged.domain.judging.comparison import ModelComparison
from edged.domain.judging.gate import Evidence, GateRules, Verdict, judge_recalled, refuse
from edged.domain.model_files import INT8
from edged.errors import EdgedError
from edged.host.timeout import within
from edged.storage.models.candidates import ProbeRules, verify_candidate, verify_quantised

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.config import Config, GateConfig
    from edged.device.promotion.model_loader import ModelLoader
    from edged.domain.judging.challenger_test import ContestErrors
    from edged.domain.judging.regimes import Regimes
    from edged.domain.protocols import Holdout, Model, ModelReader, ServedModel
    from edged.domain.stream.sample import Window
    from edged.storage.models.registry import Registry

UNIT_ROWS = 1000  # newest samples by which the errors of a reconstruction are weighed


class CandidateEvaluator:
    """Compares candidates with the champion by the configured rules."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        holdout: Holdout,
        models: ModelLoader,
        reader: ModelReader,
        regimes: Regimes,
    ) -> None:
        self._config = config.gate
        self._schema = schema = config.stream.to_schema()
        self._comparison = ModelComparison(schema, holdout, gate_rules(config.gate), regimes, reader)
        self._registry = registry
        self._holdout = holdout
        self._models = models
        self._reader = reader
        self._int8 = config.serving.quantise == INT8

    def configure(self, config: GateConfig) -> None:
        """Judge by other rules from the next candidate on."""
        self._config = config
        self._comparison.rules = gate_rules(config)

    def verify(self, folder: Path) -> tuple[Model, float]:
        """Whole, loadable, with the trainer's own outputs, and fast enough."""
        return verify_candidate(folder, self._reader.load, self._probing(), self._reader.breathe)

    def _probing(self) -> ProbeRules:
        return ProbeRules(
            self._schema.width, self._models.widths, self._config.tolerance, self._config.latency
        )

    def with_form(
        self,
        verdict: Verdict,
        folder: Path,
        models: tuple[Model, ServedModel],
        scale: NDArray[np.float32] | None,
        *,
        first: bool,
    ) -> Verdict:
        """The verdict, and where models are served as int8, in which form this one will be."""
        if not self._int8:
            return verdict
        from edged.domain.judging.quantised import choose_form, served_as_float32

        def load() -> tuple[Model, float] | None:
            return verify_quantised(folder, self._reader.load, self._probing(), self._reader.breathe)

        def choose() -> Verdict:
            recent = self._holdout.holdout_window(self._config.recent)
            both = models[0], models[1].model
            return choose_form(verdict, load, self._comparison, both, recent, scale, first=first)

        try:
            return within(self._config.timeout, "judging the quantised form", choose)
        except (EdgedError, OSError, ValueError, MemoryError) as problem:
            return served_as_float32(verdict, line_of(problem))

    def evaluate(
        self,
        model: Model,
        champion: ServedModel,
        *,
        first: bool = False,
        contest: ContestErrors | None = None,
    ) -> tuple[Verdict, NDArray[np.float32] | None]:
        """The verdict on a loaded candidate, and what weighed the errors. `first` compares nothing."""
        recent = self._holdout.holdout_window(self._config.recent)
        self._reader.breathe()
        scale = self.scale(champion, recent)
        if first:
            return Verdict(True, ("first model trained for this stream",)), scale
        pinned = [record.version for record in self._registry.records() if record.pinned]
        if pinned:
            return refuse(f"version {pinned[0]} is pinned"), scale
        evidence = None
        if contest is not None:
            evidence = Evidence(np.asarray(contest.candidate), np.asarray(contest.champion))
        return self._comparison.evaluate(model, champion.model, recent, scale, evidence), scale

    def scale(self, champion: ServedModel, recent: Window) -> NDArray[np.float32] | None:
        """What weighs errors; fixed with the first model for reconstructions: scores stay comparable."""
        if not self._schema.labels_itself:
            return self._comparison.scale(recent)
        if champion.scale is not None:
            return champion.scale
        return self._comparison.scale(self._holdout.training_window(0, UNIT_ROWS))

    def recalled(
        self,
        model: Model,
        champion: ServedModel,
        window: Window,
        scale: NDArray[np.float32] | None,
        tried: int,
    ) -> Verdict:
        """The verdict on one of `tried` models of earlier regimes, by rows nobody has learned from."""
        evidence = self._comparison.evidence(model, champion.model, window, scale)
        return judge_recalled(self._schema.task, evidence, tried)


def gate_rules(config: GateConfig) -> GateRules:
    """Return the configured rules of the gate."""
    return GateRules(
        min_gain=config.min_gain,
        max_regret=config.max_regret,
        min_holdout=config.min_holdout,
        significance=config.significance,
    )
