"""New networks, as `edged model new` asks for them: from words and sizes to an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import onnx

from edged.bundles.graph.templates import autoencoder, cnn1d, cnn2d, gru, mlp
from edged.errors import ConfigError
from edged.storage.files.atomic import publish_file

_Shape = TypeVar("_Shape", tuple[int, int], tuple[int, int, int])

HIDDEN = {"mlp": (64, 32), "autoencoder": (64, 32), "cnn1d": (32, 32), "cnn2d": (16, 32), "gru": (64,)}


@dataclass(frozen=True)
class Inputs:
    """Shape of a model's input: features, `(rows, channels)` of a window, `(channels, height, width)`."""

    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Number of features of a sample."""
        return math.prod(self.sizes)

    @property
    def window(self) -> tuple[int, int] | None:
        """Rows and channels; None where samples are no windows."""
        return (self.sizes[0], self.sizes[1]) if len(self.sizes) == 2 and self.sizes[0] > 1 else None

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width, one channel where none is named; None where samples are no images."""
        if len(self.sizes) < 2:
            return None
        *channels, height, width = self.sizes
        return (channels[0] if channels else 1, height, width)

    @classmethod
    def parse(cls, text: str) -> Inputs:
        """Read `9`, `128x9` or `3x32x32`; ConfigError otherwise."""
        sizes = text.lower().split("x")
        if len(sizes) > 3 or not all(size.isdecimal() and int(size) >= 1 for size in sizes):
            remedy = "such as 9; for windows 128x9, for images 3x32x32"
            raise ConfigError(f"{text!r} is no size of an input", where="--inputs", remedy=remedy)
        return cls(tuple(map(int, sizes)))


def new_model(
    kind: str,
    *,
    inputs: Inputs,
    outputs: int | None,
    hidden: Sequence[int] | None,
    out: Path,
    seed: int,
) -> onnx.ModelProto:
    """Write a small network to `out`.

    `hidden` are layer sizes, those of the kind when None; an autoencoder takes the last one as its code.

    Raises ConfigError when the kind is unknown, `outputs` is missing, or the kind is for windows.
    """
    if kind not in HIDDEN:
        raise ConfigError(f"unknown kind {kind!r}", where="model new", remedy=f"one of {', '.join(HIDDEN)}")
    sizes = HIDDEN[kind] if hidden is None else tuple(hidden)
    if kind == "autoencoder":
        code = sizes[-1] if sizes else max(1, inputs.width // 2)
        model = autoencoder(inputs.width, sizes[:-1], code, seed=seed)
    elif outputs is None:
        raise ConfigError(f"this {kind} needs --outputs", where="--outputs", remedy="classes or targets")
    elif kind == "mlp":
        model = mlp(inputs.width, outputs, sizes, seed=seed)
    elif kind == "cnn2d":
        model = cnn2d(_shaped(kind, inputs.image, "such as 28x28, or 3x32x32"), outputs, sizes, seed=seed)
    else:
        window = _shaped(kind, inputs.window, "such as 128x9: 128 readings of 9 channels")
        model = (cnn1d if kind == "cnn1d" else gru)(window, outputs, sizes, seed=seed)
    publish_file(out, model.SerializeToString(deterministic=True))
    return model


def _shaped(kind: str, shape: _Shape | None, example: str) -> _Shape:
    if shape is None:
        raise ConfigError(f"a {kind} takes {'images' if kind == 'cnn2d' else 'windows'}", where="--inputs",
                          remedy=example)  # fmt: skip
    return shape


def parse_sizes(hidden: str) -> list[int]:
    """Read layer sizes such as `64,32`; ConfigError otherwise."""
    try:
        sizes = [int(part) for part in hidden.split(",") if part.strip()]
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise ConfigError(f"{hidden!r} is no list of layer sizes", where="--hidden", remedy="such as 64,32")
    return sizes
