"""How good the device's first model would be today: what all learning is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging.outputs import answers, errors
from edged.domain.judging.predictions import LiveQuality
from edged.errors import EdgedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.commands import Parts
    from edged.domain.protocols import Model

MOST = 1000  # labelled samples at a look: as many as live quality is the mean of

log = get_logger("edged.web")


class Baseline:
    """Asks the bundle's own model, as it was installed, about samples whose labels have come.

    It is loaded when a trained model serves first: until then both are the same. Samples of the holdout are
    left out, which makes no difference to the mean.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._quality = LiveQuality()
        self._model: Model | None = None
        self._seq = 0
        self._gone = False

    def quality(self) -> float | None:
        """Its accuracy, or error, over the newest labelled samples; None where that model is not here."""
        server, registry = self._parts.server, self._parts.registry
        live = server.live_quality()
        name = "accuracy" if "accuracy" in live else "error"
        if self._model is None and registry.get(server.champion.version).source == "bundle":
            value: float | None = live[name]
            return value
        try:
            self._follow()
        except EdgedError as problem:
            log.warning("first_model_unusable", problem=problem.line())
            self._gone = True
        mean = None if self._gone else self._quality.mean
        return None if mean is None else 1.0 - mean if name == "accuracy" else mean

    def _follow(self) -> None:
        """Take in what has been labelled since the last look."""
        if self._model is None and not self._gone:
            self._model = self._parts.promoter.first_model()
            self._gone = self._model is None
        if self._model is None or self._gone:
            return
        window = self._parts.reader.training_window(self._seq, MOST)
        if len(window) == 0:
            return
        self._seq = int(window.seq[-1])
        server = self._parts.server
        raw = self._model.predict(window.x)
        wrong = errors(server.schema, answers(server.schema, raw), window.y, server.champion.scale)
        usual = np.isfinite(raw).all(axis=1)
        if server.anomalies is not None:
            usual &= wrong <= server.anomalies.limit
        self._quality.add(wrong[usual])
