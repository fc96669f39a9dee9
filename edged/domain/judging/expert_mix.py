"""How much each expert of a model counts: learned from labels, by what the experts said before they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.judging.outputs import probabilities
from edged.domain.judging.ridge_head import RidgeHead, log_likelihoods
from edged.domain.protocols import ExpertModel
from edged.domain.stream.temporal_context import pad
from edged.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import Model

    Floats = NDArray[np.float32]

SLOW, FAST = 0.002, 0.05  # step of a late label, and of the first one
HALVED = 100  # labels after which the first step is halved


class ExpertMix:
    """Weights w of the log-linear mixture p ∝ exp(Σ w·ℓ) of experts (Genest and Zidek 1986).

    ℓ of an expert are logarithms of its probabilities, less their mean over the classes. Each of k experts
    begins with 1/k. A label y moves each weight against the gradient of the mixture's cross-entropy,
    w ← max(0, w − step·Σ (p − [y])·ℓ), with ℓ and p of prediction time, and a step that shrinks from `FAST`
    to `SLOW`. Their sum is free, so a mixture that is too sure of itself becomes less so. `head` is the last
    of the experts, where there is one.
    """

    def __init__(self, head: RidgeHead | None = None) -> None:
        self._weights = np.empty(0)
        self.labels = 0
        self.head = head

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
            self._weights, self.labels = np.full(experts, 1 / experts), 0
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
    A model with `random` weights says nothing, so the head answers alone; without one the model does.
    """

    def __init__(self, model: ExpertModel, mix: ExpertMix, *, random: bool = False) -> None:
        self._model, self.mix, self.random = model, mix, random
        self.input_width = model.input_width

    @classmethod
    def of(cls, model: Model, mix: ExpertMix, *, random: bool = False) -> Model:
        """The model as the stream uses it; itself where it is not known to need that."""
        return cls(model, mix, random=random) if isinstance(model, ExpertModel) else model

    def predict(self, x: Floats) -> Floats:
        """Logits or values `(n, k)`."""
        return self.predict_both(x)[0]

    def predict_both(self, x: Floats) -> tuple[Floats, Floats | None]:
        """Logits or values `(n, k)`, and what each expert says, `(n, experts, k)`, where there are any."""
        head = self.mix.head
        if head is not None and self.random:
            return head.likelihoods(x), None
        own = pad(x, self.input_width)
        if head is None:
            if not self._model.experts:
                return self._model.predict(own), None
            said = self._model.predict_experts(own)
        else:
            said = np.concatenate([self._experts(own), head.likelihoods(x)[:, None]], axis=1)
        return self.mix.combine(said), said

    def _experts(self, x: Floats) -> Floats:
        if self._model.experts:
            return self._model.predict_experts(x)
        return log_likelihoods(self._model.predict(x))[:, None]

    def with_own_mix(self) -> StreamModel:
        """The model with weights of its own, the same for each expert, that nothing changes."""
        return StreamModel(self._model, ExpertMix())
