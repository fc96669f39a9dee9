"""How much each expert of a model counts: learned from labels, by what the experts said before they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.judging.outputs import probabilities
from edged.domain.protocols import ExpertModel
from edged.domain.stream.temporal_context import pad
from edged.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import Model

    Floats = NDArray[np.float32]

SLOW, FAST = 0.002, 0.05  # step of a late label, and of the first one
FIRST = 1.4  # sum of the first weights: what learned smoothed labels is less sure than it is right
HALVED = 20  # labels after which the first step is halved


class ExpertMix:
    """Weights w of the log-linear mixture p ∝ exp(Σ w·ℓ) of experts (Genest and Zidek 1986).

    ℓ of an expert are logarithms of its probabilities, less their mean over the classes. Each of k experts
    begins with `FIRST`/k. A label y moves each weight against the gradient of the mixture's cross-entropy,
    w ← max(0, w − step·Σ (p − [y])·ℓ), with ℓ and p of prediction time, and a step that shrinks from `FAST`
    to `SLOW`. Their sum is free, so a mixture that is too sure of itself becomes less so.
    """

    def __init__(self) -> None:
        self._weights = np.empty(0)
        self.labels = 0

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights `(k,)`; empty before the first mixture."""
        return self._weights

    def combine(self, experts: Floats) -> Floats:
        """Logits `(n, c)` of the mixture of `experts` `(n, k, c)`."""
        weights = self._for(experts.shape[1])
        return np.asarray(weights.astype(np.float32) @ experts)

    def update(self, experts: Floats, y: NDArray[np.int64]) -> None:
        """Learn from class indices `y` `(n,)` of rows of which the experts had said `experts` `(n, k, c)`."""
        weights = self._for(experts.shape[1])
        for said, label in zip(experts, y.tolist(), strict=True):
            wrong = probabilities((weights @ said)[None])[0]
            wrong[label] -= 1
            self.labels += 1
            step = max(SLOW, FAST / (1 + self.labels / HALVED))
            weights = np.maximum(0, weights - step * (said @ wrong))
        self._weights = weights

    def _for(self, experts: int) -> NDArray[np.float64]:
        """The weights; of another number of experts nothing is known."""
        if len(self._weights) != experts:
            self._weights, self.labels = np.full(experts, FIRST / experts), 0
        return self._weights

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"weights": self._weights.tolist(), "labels": self.labels}

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned; CorruptError when it is something else."""
        try:
            weights, labels = np.asarray(state["weights"], np.float64), int(state["labels"])
        except (LookupError, TypeError, ValueError) as problem:
            raise CorruptError(f"weights of experts are damaged: {problem}") from problem
        if weights.ndim != 1 or not np.isfinite(weights).all() or weights.min(initial=0.0) < 0 or labels < 0:
            raise CorruptError("weights of experts are damaged")
        self._weights, self.labels = weights, labels


class StreamModel:
    """A model as a stream uses it: it gets rows with the context that it takes, and its experts are mixed.

    `mix` is the stream's, which all its models share: a later generation of the same experts goes on with it.
    """

    def __init__(self, model: ExpertModel, mix: ExpertMix) -> None:
        self._model, self.mix = model, mix
        self.input_width, self.experts = model.input_width, model.experts

    @classmethod
    def of(cls, model: Model, mix: ExpertMix) -> Model:
        """The model as the stream uses it; itself where it is not known to need that."""
        return cls(model, mix) if isinstance(model, ExpertModel) else model

    def predict(self, x: Floats) -> Floats:
        """Logits or values `(n, k)`."""
        return self.predict_both(x)[0]

    def predict_both(self, x: Floats) -> tuple[Floats, Floats | None]:
        """Logits or values `(n, k)`, and what each expert says, `(n, experts, k)`, where there are any."""
        x = pad(x, self.input_width)
        if not self.experts:
            return self._model.predict(x), None
        said = self._model.predict_experts(x)
        return self.mix.combine(said), said

    def predict_experts(self, x: Floats) -> Floats:
        """What each expert says, `(n, experts, classes)`."""
        return self._model.predict_experts(pad(x, self.input_width))

    def with_own_mix(self) -> StreamModel:
        """The model with weights of its own, the same for each expert, that nothing changes."""
        return StreamModel(self._model, ExpertMix())
