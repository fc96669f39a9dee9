"""What a stream serves beside a model file: how much each expert counts, and the closed-form head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edged.domain.training.message import Message


@dataclass(frozen=True)
class LinearHead(Message):
    """Probabilities softmax(sharpness·(prior + clip((x − mean)·scale, ±clip)·weights)).

    `mean` and `scale` `(columns,)`, `weights` `(columns, classes)`, `prior` `(classes,)`. The head sees the
    first `columns` of an input.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    prior: tuple[float, ...]
    sharpness: float
    clip: float


@dataclass(frozen=True)
class MixtureOrder(Message):
    """An order to write the ONNX file `out`: a model with the mixture of its experts in it.

    `weights` are those of the experts of `model`, in their order, then that of `head`, where there is one. A
    model of one network is one expert.
    """

    model: Path
    out: Path
    weights: tuple[float, ...]
    head: LinearHead | None = None
