"""Which samples without a label the champion may label, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging.outputs import probabilities
from edged.domain.training.pseudo_labels import JUDGED, NEWEST, PseudoLabels, threshold

if TYPE_CHECKING:
    from edged.domain.protocols import Model, Unlabelled


def pseudo_labels(model: Model, samples: Unlabelled) -> PseudoLabels:
    """The newest samples without a label of whose answers the model is sure enough.

    How sure that is the newest held-out labels tell: nothing else of them is used.
    """
    judged, newest = samples.holdout_window(JUDGED), samples.unlabelled(NEWEST)
    if len(judged) == 0 or len(newest) == 0:
        return PseudoLabels()
    known = probabilities(model.predict(judged.x))
    limit = threshold(known.max(axis=1), known.argmax(axis=1) == judged.y[:, 0])
    if limit is None:
        return PseudoLabels()
    made = probabilities(model.predict(newest.x))
    sure = made.max(axis=1) >= limit
    return PseudoLabels(newest.offsets[sure], made[sure].argmax(axis=1).astype(np.float32).reshape(-1, 1))
