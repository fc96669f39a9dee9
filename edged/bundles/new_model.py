"""New networks, as `edged model new` asks for them: from words and sizes to an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import onnx

from edged.bundles.graph.templates import autoencoder, cnn1d, cnn2d, gru, mlp
from edged.errors import ConfigError
from edged.storage.files.atomic import publish_file

HIDDEN = {"mlp": (64, 32), "autoencoder": (64, 32), "cnn1d": (32, 32), "cnn2d": (16, 32), "gru": (64,)}


def parse_inputs(text: str) -> tuple[int, ...]:
    """Read the shape of an input: `9`, for windows `128x9`, for images `3x32x32`; ConfigError otherwise."""
    sizes = text.lower().split("x")
    if len(sizes) > 3 or not all(size.isdecimal() and int(size) >= 1 for size in sizes):
        remedy = "such as 9; for windows 128x9, for images 3x32x32"
        raise ConfigError(f"{text!r} is no size of an input", where="--inputs", remedy=remedy)
    return tuple(map(int, sizes))


def new_model(
    kind: str,
    *,
    inputs: Sequence[int],
    outputs: int | None,
    hidden: Sequence[int] | None,
    out: Path,
    seed: int,
) -> onnx.ModelProto:
    """Write a small network to `out`.

    `inputs` are the features, `(rows, channels)` of a window, or `(height, width)` of an image, its channels
    before them. `hidden` are layer sizes, those of the kind when None; an autoencoder takes the last one as
    its code.

    Raises ConfigError when the kind is unknown, `outputs` is missing, or the kind is for other inputs.
    """
    if kind not in HIDDEN:
        raise ConfigError(f"unknown kind {kind!r}", where="model new", remedy=f"one of {', '.join(HIDDEN)}")
    sizes, width = HIDDEN[kind] if hidden is None else tuple(hidden), math.prod(inputs)
    if kind == "autoencoder":
        code = sizes[-1] if sizes else max(1, width // 2)
        model = autoencoder(width, sizes[:-1], code, seed=seed)
    elif outputs is None:
        raise ConfigError(f"this {kind} needs --outputs", where="--outputs", remedy="classes or targets")
    elif kind == "mlp":
        model = mlp(width, outputs, sizes, seed=seed)
    elif kind == "cnn2d":
        if len(inputs) < 2:
            raise _other_inputs(kind, "images", "such as 28x28, or 3x32x32")
        channels, rows, columns = (1, *inputs)[-3:]
        model = cnn2d((channels, rows, columns), outputs, sizes, seed=seed)
    else:
        if len(inputs) != 2 or inputs[0] < 2:
            raise _other_inputs(kind, "windows", "such as 128x9: 128 readings of 9 channels")
        model = (cnn1d if kind == "cnn1d" else gru)((inputs[0], inputs[1]), outputs, sizes, seed=seed)
    publish_file(out, model.SerializeToString(deterministic=True))
    return model


def _other_inputs(kind: str, taken: str, example: str) -> ConfigError:
    return ConfigError(f"a {kind} takes {taken}", where="--inputs", remedy=example)


def parse_sizes(hidden: str) -> list[int]:
    """Read layer sizes such as `64,32`; ConfigError otherwise."""
    try:
        sizes = [int(part) for part in hidden.split(",") if part.strip()]
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise ConfigError(f"{hidden!r} is no list of layer sizes", where="--hidden", remedy="such as 64,32")
    return sizes
