"""Two models side by side: on the newest holdout, and on what is kept of earlier regimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging.gate import Evidence, GateRules, Retained, judge
from edged.domain.judging.outputs import answers, errors, unit_scale
from edged.domain.judging.regimes import Regimes, elsewhere
from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.outcomes import too_few

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import Holdout, Model, ModelReader
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema

RETAINED = 200  # holdout samples of an earlier regime that are asked at most


class ModelComparison:
    """Asks champion and candidate about the same rows, which neither has learned from.

    `reader` lets other threads run between pieces of work that hold the interpreter's lock.
    """

    def __init__(
        self,
        schema: Schema,
        holdout: Holdout,
        rules: GateRules,
        regimes: Regimes,
        reader: ModelReader,
    ) -> None:
        self.schema = schema
        self._holdout = holdout
        self.rules = rules
        self._regimes = regimes
        self._reader = reader

    def scale(self, window: Window) -> NDArray[np.float32] | None:
        """What makes errors of several targets comparable, `(k,)`; None for classes and on a single row."""
        return unit_scale(window.y) if self.schema.task != "classify" and len(window) > 1 else None

    def evaluate(
        self,
        model: Model,
        champion: Model,
        recent: Window,
        scale: NDArray[np.float32] | None,
    ) -> Verdict:
        """The verdict on a candidate, from the newest holdout rows `recent` and those of earlier regimes."""
        if len(recent) == 0:
            return refuse(too_few(0, self.rules.min_holdout), holdout=0.0)
        evidence = self.evidence(model, champion, recent, scale)
        retained = self._retained(model, champion, recent, scale)
        return judge(self.schema.task, evidence, retained, self.rules)

    def evidence(
        self, model: Model, champion: Model, window: Window, scale: NDArray[np.float32] | None
    ) -> Evidence:
        """Both models' errors on the rows of a window."""
        candidate, other = (
            errors(self.schema, answers(self.schema, m.predict(window.x)), window.y, scale)
            for m in (model, champion)
        )
        said = window.y[:, 0].astype(np.int64) if self.schema.task == "classify" else None
        return Evidence(candidate, other, said, self.schema.classes)

    def _retained(
        self, model: Model, champion: Model, recent: Window, scale: NDArray[np.float32] | None
    ) -> list[Retained]:
        """Both models on what is kept of each earlier regime, and of the present one up to the newest."""
        first, regimes = int(recent.seq[0]), self._regimes
        stretches = [
            (f"earlier conditions (up to label {r.until:,})", r.after, r.until, regimes.drifted_since(r))
            for r in regimes.ended
        ]
        stretches.append(("the time before the newest labels", regimes.begun, first, False))
        retained = []
        for name, after, until, drifted in stretches:
            window = self._holdout.older_holdout(RETAINED, min(until + 1, first), seed=0, after_seq=after)
            self._reader.breathe()
            if len(window):
                evidence = self.evidence(model, champion, window, scale)
                retained.append(Retained(name, evidence, elsewhere(window.x, recent.x), drifted))
        return retained
