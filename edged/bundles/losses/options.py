"""Losses as they are written on the command line.

`mse`; `LOSS.onnx`; `losses.py:huber` or `package.module:huber`; and for models of several outputs, once for
each, `NAME=LOSS` or `NAME=LOSS:WEIGHT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edged.bundles.losses.cross_entropy import CrossEntropy
from edged.bundles.losses.function import FunctionLoss
from edged.bundles.losses.objective import LossHead
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.bundles.losses.objective import Given

_CLASSES = "cross_entropy"


def parse(
    texts: Sequence[str],
    class_weights: str | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Given | list[LossHead]:
    """The loss, or the losses of several outputs, that `--loss` asks for.

    `class_weights` such as `1,2,0.5`, `ignore_index` and `label_smoothing` are for the one that is
    cross_entropy.

    Raises ConfigError when a text is no loss, or there is not one cross_entropy to weigh the classes of;
    UnavailableError for a block of onnxruntime-training, where that is not installed.
    """
    weighted = _weighted(texts, class_weights, ignore_index, label_smoothing)
    if len(texts) == 1 and "=" not in texts[0]:
        return _loss(texts[0], weighted)
    return [_head(text, weighted) for text in texts]


def _head(text: str, weighted: CrossEntropy | None) -> LossHead:
    output, equals, loss = text.partition("=")
    if not output or not equals or not loss:
        raise ConfigError(
            f"{text!r} names no output",
            where="--loss",
            remedy="several losses are written NAME=LOSS, such as class=cross_entropy:0.3",
        )
    name, colon, number = loss.rpartition(":")
    try:
        weight = float(number) if colon else 1.0
    except ValueError:
        name, weight = loss, 1.0
    return LossHead(output, _loss(name or loss, weighted), weight)


def _loss(text: str, weighted: CrossEntropy | None) -> Given:
    if text == _CLASSES and weighted is not None:
        return weighted
    if text.endswith(".onnx"):
        return Path(text)
    return FunctionLoss(text) if ":" in text else text


def _weighted(
    texts: Sequence[str], weights: str | None, ignored: int | None, smoothing: float
) -> CrossEntropy | None:
    if weights is None and ignored is None and not smoothing:
        return None
    if sum(_CLASSES in text for text in texts) != 1:
        raise ConfigError(f"loss {', '.join(texts)} has no classes to weigh or to smooth", where="--loss",
                          remedy="use cross_entropy, once")  # fmt: skip
    try:
        found = None if weights is None else tuple(float(part) for part in weights.split(","))
    except ValueError:
        raise ConfigError(f"{weights!r} is no list of numbers", where="--class-weights",
                          remedy="such as 1,2,0.5") from None  # fmt: skip
    return CrossEntropy(found, ignored, smoothing)
