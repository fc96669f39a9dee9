"""Who answers and learns the samples of keys that have models of their own, as serving sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.device.serving.predictor import Predictor
    from edged.domain.judging.predictions import Predictions
    from edged.errors import ModelError


@dataclass(frozen=True)
class Share:
    """Samples of a batch, `rows` `(n,)`, that `predictor` answers.

    `key` is the one that they are of, where it has a model of its own, whichever of the two models answers:
    the own one where `own`.
    """

    rows: NDArray[np.int64]
    predictor: Predictor
    key: str | None = None
    own: bool = False


class KeyAnswers(Protocol):
    """The models of keys beside the stream's."""

    def split(self, keys: Sequence[str]) -> list[Share]:
        """Who answers samples of these keys."""

    def compare(self, share: Share, made: Predictions, x: NDArray[np.float32], keys: Sequence[str]) -> None:
        """Ask the other model about samples that one has answered; call it once the answers are out."""

    def label(
        self,
        offsets: NDArray[np.int64],
        y: NDArray[np.float32],
        x: NDArray[np.float32] | None = None,
        sources: Sequence[str] | None = None,
    ) -> None:
        """Judge both models by labels `(n, targets)` of samples that both have answered."""

    def failed(self, share: Share, problem: ModelError) -> None:
        """The own model of a key could not answer."""
