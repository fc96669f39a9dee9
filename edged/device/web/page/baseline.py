"""Quality of the initial model on current samples: the baseline for all learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging.outputs import answers, errors
from edged.domain.judging.predictions import LiveQuality
from edged.errors import EdgedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.live_pipeline import LivePipeline
    from edged.domain.protocols import Model

MOST = 1000  # labelled samples per call: as many as live quality is the mean of

log = get_logger("edged.web")


class Baseline:
    """Evaluates the initial model on samples that were labelled since the last call.

    The model is loaded when a trained model serves, or a head learns beside it: until then both are the same.
    Samples of the holdout are left out, which makes no difference to the mean.
    """

    def __init__(self, pipeline: LivePipeline) -> None:
        self._pipeline = pipeline
        self._quality = LiveQuality()
        self._model: Model | None = None
        self._seq = 0
        self._gone = False

    def quality(self) -> float | None:
        """Return its accuracy or error on the newest labelled samples; None if the model is not stored."""
        predictor, registry = self._pipeline.predictor, self._pipeline.registry
        live = predictor.live_quality()
        alone = self._pipeline.mix.head is None  # a head beside the initial model learns from the first label
        if alone and self._model is None and registry.get(predictor.champion.version).source == "bundle":
            return live.mean
        try:
            self._follow()
        except EdgedError as problem:
            log.warning("first_model_unusable", problem=problem.line())
            self._gone = True
        mean = None if self._gone else self._quality.mean
        return None if mean is None else 1.0 - mean if live.of_classes else mean

    def _follow(self) -> None:
        if self._model is None and not self._gone:
            self._model = self._pipeline.models.first_model()
            self._gone = self._model is None
        if self._model is None or self._gone:
            return
        window = self._pipeline.reader.training_window(self._seq, MOST)
        if len(window) == 0:
            return
        self._seq = int(window.seq[-1])
        predictor = self._pipeline.predictor
        raw = self._model.predict(window.x)
        wrong = errors(predictor.schema, answers(predictor.schema, raw), window.y, predictor.champion.scale)
        usual = np.isfinite(raw).all(axis=1)
        if predictor.anomalies is not None:
            usual &= wrong <= predictor.anomalies.limit
        self._quality.add(wrong[usual])
