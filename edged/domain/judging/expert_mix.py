"""Weights of the experts of a model, learned from labels; of a forecast the last value is one expert."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from edged.domain.arrays import Doubles, Floats, Ints
from edged.domain.child_orders import MixtureOrder
from edged.domain.json_fields import JsonObject
from edged.domain.judging.outputs import log_likelihoods, probabilities
from edged.domain.judging.ridge_head import Learned, RidgeHead
from edged.domain.protocols import ExpertModel, Model
from edged.domain.stream.open_classes import OpenClasses
from edged.domain.stream.schema import Schema
from edged.domain.stream.temporal_context import pad
from edged.errors import CorruptError, RefusedError

FIRST = 1.4  # sum of the first weights: what learned smoothed labels is less sure than it is right
EXPERT_HALVED = 100  # labels after which the first step is halved
SLOW, FAST = 0.002, 0.05  # step of a late label, and of the first one
CHANGE_HALVED = 20  # labels after which the first step is halved
MOST = 3.0  # usual changes that one label counts as at most: a glitch moves a share no further


def step_after(labels: int, halved: int) -> float:
    """The step of a label: from `FAST` on, half of it after `halved` labels, and `SLOW` in the end."""
    return max(SLOW, FAST / (1 + labels / halved))


class ChangeMix:
    """Shares g in [0, 1] of the change that a model foresees: last value + g · (answer − last value).

    `columns` are those of a sample that are forecast, one share for each; every share begins with 1, the
    model's own answer. A label moves it against the gradient of the absolute error, in units of the usual
    change, in steps from `FAST` to `SLOW`: so what is served is no worse than the last value for long.
    """

    head = None  # that of classes

    def __init__(self, columns: Sequence[int]) -> None:
        self._columns = list(columns)
        self._shares, self._usual = np.ones(len(columns)), np.zeros(len(columns))
        self.labels = 0

    @property
    def shares(self) -> Doubles:
        """Return the share of the model in each target's answer, `(targets,)`."""
        return self._shares

    def fresh(self) -> ChangeMix:
        """The same for a model of its own, which is served as it is."""
        return ChangeMix(self._columns)

    def beside(self, x: Floats, raw: Floats) -> Floats:
        """Last values and answers `raw` `(n, targets)` of samples `x` `(n, d)`: `(n, 2, targets)`."""
        return np.stack([x[:, self._columns], raw], axis=1)

    def combine(self, experts: Floats) -> Floats:
        """Return the served values `(n, targets)` for last values and answers `(n, 2, targets)`."""
        last, raw = experts[:, 0], experts[:, 1]
        if (self._shares == 1).all():
            return raw
        return np.asarray(last + self._shares.astype(np.float32) * (raw - last), np.float32)

    def update(self, experts: Floats, y: Floats) -> None:
        """Learn from targets `y` `(n, targets)`, of which was said `experts` `(n, 2, targets)`."""
        changes, wanted = np.diff(experts, axis=1)[:, 0].astype(np.float64), y - experts[:, 0]
        for change, right in zip(changes, wanted.astype(np.float64), strict=True):
            self.labels += 1
            size = np.abs(change)
            bounded = size if self.labels <= CHANGE_HALVED else np.minimum(size, MOST * self._usual)
            self._usual += (bounded - self._usual) * max(SLOW, 1 / self.labels)
            step = step_after(self.labels, CHANGE_HALVED)
            far = np.minimum(size / np.maximum(self._usual, 1e-30), MOST) * np.sign(change)
            self._shares = np.clip(self._shares + step * far * np.sign(right - self._shares * change), 0, 1)

    def state(self) -> JsonObject:
        """Return the state as JSON values, for `restore`."""
        return {"shares": self._shares.tolist(), "usual": self._usual.tolist(), "labels": self.labels}

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned, where it is of as many targets; CorruptError when it is none."""
        try:
            shares, usual = (np.asarray(state[name], np.float64) for name in ("shares", "usual"))
            labels = int(state["labels"])
        except (LookupError, TypeError, ValueError) as problem:
            raise CorruptError(f"shares of changes are damaged: {problem}") from problem
        if not (np.isfinite(usual).all() and ((shares >= 0) & (shares <= 1)).all() and labels >= 0):
            raise CorruptError("shares of changes are damaged")
        if shares.shape == usual.shape == self._shares.shape:
            self._shares, self._usual, self.labels = shares, usual, labels


class ExpertMix:
    """Weights w of the log-linear mixture p ∝ exp(Σ w·ℓ) of experts (Genest and Zidek 1986).

    ℓ of an expert are logarithms of its probabilities, less their mean over the classes. Each of k experts
    begins with `FIRST`/k. A label y moves each weight against the gradient of the mixture's cross-entropy,
    w ← max(0, w − step·Σ (p − [y])·ℓ), with ℓ and p of prediction time, and a step that shrinks as
    `step_after` says. Their sum is free, so a mixture that is too sure of itself becomes less so.
    `classes` that come and go are settled in what is served. `head` is the last of the experts, where there
    is one.
    """

    def __init__(self, classes: OpenClasses | None = None, head: RidgeHead | None = None) -> None:
        self._classes = classes
        self._weights = np.empty(0)
        self.labels = 0
        self.head = head

    @property
    def weights(self) -> Doubles:
        """The weights `(k,)`; empty before the first mixture."""
        return self._weights

    def combine(self, experts: Floats) -> Floats:
        """Logits `(n, c)` of the mixture of `experts` `(n, k, c)`."""
        weights = self._for(experts.shape[1])
        return np.asarray(weights.astype(np.float32) @ experts)

    def update(self, experts: Floats, y: Ints) -> None:
        """Learn from class indices `y` `(n,)` of rows of which the experts had said `experts` `(n, k, c)`."""
        weights = self._for(experts.shape[1])
        for said, label in zip(experts, y.tolist(), strict=True):
            if label >= experts.shape[2]:
                continue  # an earlier network, which never had this class
            wrong = probabilities((weights @ said)[None])[0]
            wrong[label] -= 1
            self.labels += 1
            step = step_after(self.labels, EXPERT_HALVED)
            weights = np.maximum(0, weights - step * (said @ wrong))
        self._weights = weights

    def counting(self, experts: int) -> tuple[float, ...]:
        """Return the present weight of each of so many experts."""
        return tuple(self._for(experts).tolist())

    def _for(self, experts: int) -> Doubles:
        """The weights; of another number of experts nothing is known."""
        if len(self._weights) != experts:
            self._weights, self.labels = np.full(experts, FIRST / experts), 0
        return self._weights

    def state(self) -> JsonObject:
        """Return the state as JSON values, for `restore`."""
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

    def fresh(self) -> ExpertMix:
        """The same weights for all, with what the head knows now."""
        return ExpertMix(self._classes, copy.deepcopy(self.head))

    def fold(self, raw: Floats) -> Floats:
        """Logits `(n, c)` for the classes of now, where they come and go."""
        return raw if self._classes is None else self._classes.fold(raw)


Mix: TypeAlias = ExpertMix | ChangeMix


def mix_of(schema: Schema, head: RidgeHead | None = None) -> Mix:
    """Return the mixture that a stream begins with; of forecasts the last value is one expert."""
    return ChangeMix(schema.forecast) if schema.forecast else ExpertMix(schema.open, head)


def beside(experts: Floats, head: Floats) -> Floats:
    """Return the outputs of experts `(n, e, k)` and of the head `(n, c)` as `(n, e + 1, c)`.

    Classes that an earlier network never had are as unlikely to it as its least likely one.
    """
    more = head.shape[1] - experts.shape[2]
    if more > 0:
        experts = np.concatenate(
            [experts, np.repeat(experts.min(axis=2, keepdims=True), more, axis=2)], axis=2
        )
    return np.concatenate([experts, head[:, None]], axis=1)


def led_by_head(mixture: Floats, head: Floats, new: list[int]) -> Floats:
    """Logits `(n, c)` of a mixture whose other experts have never seen the classes `new`.

    Each of them is as much likelier than the likeliest of the others as the head says, so it is answered
    where the head would answer it. Both arguments are logits `(n, c)`.

    >>> sure, head = np.array([[9.0, 0.0, -9.0]], np.float32), np.array([[0.0, 1.0, 3.0]], np.float32)
    >>> led_by_head(sure, head, [2]).tolist()
    [[9.0, 0.0, 11.0]]
    """
    known = [place for place in range(mixture.shape[1]) if place not in new]
    likeliest = mixture[:, known].max(axis=1, keepdims=True)
    led: Floats = mixture.copy()
    led[:, new] = likeliest + head[:, new] - head[:, known].max(axis=1, keepdims=True)
    return led


def is_untrained(model: Model) -> bool:
    """Return whether a model has the random weights that it was built with."""
    return isinstance(model, StreamModel) and model.random


class StreamModel:
    """A model as a stream uses it: it gets rows with the context that it takes, and its experts are mixed.

    The experts of a forecast are the last value and the model's answer.

    `mix` is the stream's, which all its models share: a later generation of the same experts uses it.
    A model with `random` weights says nothing, so the head answers alone; without one the model does. Nor
    does a model say anything of classes beyond what it has `learned`; None where that is not known.
    """

    def __init__(
        self, model: ExpertModel, mix: Mix, *, random: bool = False, learned: Learned | None = None
    ) -> None:
        self._model, self.mix, self.random, self._learned = model, mix, random, learned
        self.input_width = model.input_width

    @classmethod
    def of(cls, model: Model, mix: Mix, *, random: bool = False, learned: Learned | None = None) -> Model:
        """The model as the stream uses it; itself where it is not known to need that."""
        return cls(model, mix, random=random, learned=learned) if isinstance(model, ExpertModel) else model

    def predict(self, x: Floats) -> Floats:
        """Logits or values `(n, k)`."""
        return self.predict_both(x)[0]

    def predict_both(self, x: Floats) -> tuple[Floats, Floats | None]:
        """Logits or values `(n, k)`, and what each expert says, `(n, experts, k)`, where there are any."""
        own, mix = pad(x, self.input_width), self.mix
        if isinstance(mix, ChangeMix):
            both = mix.beside(own, self._model.predict(own))
            return mix.combine(both), both
        if mix.head is None:
            if not self._model.experts:
                return mix.fold(self._model.predict(own)), None
            said = self._experts(own)
        elif self.random:
            return mix.fold(mix.head.likelihoods(x)), None
        else:
            head = mix.head.likelihoods(x)
            said = beside(self._experts(own), head)
            new = [] if self._learned is None else mix.head.beyond(self._learned)
            if new:
                return led_by_head(mix.fold(mix.combine(said)), mix.fold(head), new), said
        return mix.fold(mix.combine(said)), said

    def _experts(self, x: Floats) -> Floats:
        if self._model.experts:
            return self._model.predict_experts(x)
        return log_likelihoods(self._model.predict(x))[:, None]

    def mixture(self, path: Path, out: Path) -> MixtureOrder:
        """The order to write what is served now to `out`; `path` is the model's file.

        Raises RefusedError where nothing is mixed, and for random weights.
        """
        mix = self.mix
        if isinstance(mix, ChangeMix) or not (self._model.experts or mix.head):
            raise RefusedError("nothing is mixed with this model", where="export", remedy="export the model")
        if self.random:
            raise RefusedError("the model is untrained", where="export", remedy="wait for the first run")
        networks, head = self._model.experts or 1, None if mix.head is None else mix.head.linear
        weights = mix.counting(networks + (mix.head is not None))
        return MixtureOrder(path, out, weights[: networks + (head is not None)], head)

    def with_own_mix(self) -> StreamModel:
        """The model with weights of its own, the same for each expert, that nothing changes."""
        return StreamModel(self._model, self.mix.fresh(), learned=self._learned)
