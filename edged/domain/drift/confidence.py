"""Drift of the model's confidence: a look at the outputs where labels come late or never."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.drift.adwin_correlated import CorrelatedADWIN
from edged.domain.drift.stream_watch import StreamWatch

if TYPE_CHECKING:
    from edged.domain.drift.cooldown import Cooldown


def confidence_watch(cooldown: Cooldown | None = None) -> StreamWatch:
    """Watches the probability of the predicted class, `Predictions.confidence` `(n,)`.

    ADWIN in both directions: confidence falls where inputs become foreign to the model, and rises
    where a sensor sticks or saturates. It sees neither a change of labels alone nor one far from
    the decision boundary, and it may see a mere change of class shares: take its drift as a reason
    to ask for labels or to look closer, not as proof that the model has become worse.

    References
    ----------
    T. S. Sethi, M. Kantardzic: On the reliable detection of concept drift from streaming unlabeled
    data. Expert Systems with Applications 82 (2017), for the idea of watching how sure a model is;
    P. Lindstrom, B. Mac Namee, S. J. Delany: Drift detection using uncertainty distribution
    divergence. Evolving Systems 4 (2013).
    """
    return StreamWatch("confidence", CorrelatedADWIN(mode="both"), cooldown)
