"""Weights made small for a slow line: as differences, in fewer bits.

What a coding rounds away is not lost: a sender that keeps what its receivers hold, and sends
the difference to that, adds the error of one update to the next. This is error feedback (Seide et al., "1-bit
stochastic gradient descent", 2014; Karimireddy et al., "Error feedback fixes SignSGD", 2019): the residual is
the sender's weights less what the receivers hold. Senders of an earlier version could leave out all but the
largest elements of a tensor: such sparse tensors are still decoded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edged.errors import CorruptError, ModelError

Floats = NDArray[np.float32]
Weights = dict[str, Floats]
Dtype = Literal["float32", "float16", "int8"]

LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True)
class Coding:
    """How numbers are sent.

    `int8` is symmetric: a scale for each row of a matrix, one for any other tensor. `step` is the least
    difference of two int8 values, in units of the root mean square of the tensor, which then has one scale; 0
    takes the finest that 8 bits allow. A coarse step leaves few distinct values, most of them small: they
    compress to their entropy, about 2 - log2(step) bits each.
    """

    dtype: Dtype = "float32"
    step: float = 0.0


@dataclass(frozen=True)
class Coded:
    """One tensor of `shape`: its numbers, or some of them where it is sparse."""

    values: NDArray[Any]  # `shape`, or `(k,)` where it is sparse; float32, float16 or int8
    shape: tuple[int, ...]
    scale: Floats | None = None  # `()` or `(rows,)`, what int8 values are multiplied with
    # `(k,)` unsigned: by how much each position is above the one before, in row-major order, less one.
    gaps: NDArray[Any] | None = None


def fingerprint(weights: Mapping[str, Floats]) -> str:
    """SHA-256 over names, shapes and little-endian float32 values: equal weights have equal ones."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = np.asarray(weights[name], "<f4")
        digest.update(f"{name} {list(value.shape)}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def difference(weights: Mapping[str, Floats], base: Mapping[str, Floats]) -> Weights:
    """Return `weights - base`, by name."""
    return {name: np.asarray(value - base[name], np.float32) for name, value in weights.items()}


def code(weights: Mapping[str, Floats], coding: Coding, exact: Collection[str] = ()) -> dict[str, Coded]:
    """Weights or a difference as they are sent; those of the names `exact` stay float32.

    Raises ModelError when a number is not finite.
    """
    return {
        name: _coded(name, value, Coding() if name in exact else coding) for name, value in weights.items()
    }


def decode(coded: Mapping[str, Coded]) -> Weights:
    """The numbers again; what was left out of a sparse tensor is 0.

    Raises CorruptError when positions lie outside of the tensor, or sizes do not fit.
    """
    return {name: _decoded(name, tensor) for name, tensor in coded.items()}


def _coded(name: str, value: Floats, coding: Coding) -> Coded:
    if not np.isfinite(value).all():
        raise ModelError("holds numbers that are not finite", where=f"parameter {name}")
    if coding.dtype == "int8":
        values, scale = _integers(value, coding.step, rows=value.ndim > 1 and not coding.step)
        return Coded(values, value.shape, scale)
    small = coding.dtype == "float16" and np.abs(value).max(initial=0.0) <= LARGEST_FLOAT16
    return Coded(np.asarray(value, np.float16 if small else np.float32), value.shape)


def _integers(value: Floats, step: float, *, rows: bool) -> tuple[NDArray[Any], Floats]:
    over = tuple(range(1, value.ndim)) if rows else None
    finest = np.abs(value).max(axis=over, initial=0.0) / 127.0
    mean_square = float(np.mean(np.square(value, dtype=np.float64))) if step and value.size else 0.0
    scale = np.asarray(np.maximum(finest, step * math.sqrt(mean_square)), np.float32)
    divisor = np.where(scale > 0, scale, np.float32(1.0))
    divisor = divisor.reshape(-1, *[1] * (value.ndim - 1)) if rows else divisor
    return np.clip(np.rint(value / divisor), -127, 127).astype(np.int8), scale


def _decoded(name: str, tensor: Coded) -> Floats:
    values = tensor.values.astype(np.float32)
    if tensor.gaps is not None:
        if tensor.scale is not None:
            if tensor.scale.shape != ():
                raise _scales(name, tensor.scale)
            values *= tensor.scale
        return _spread(name, values, tensor.gaps, tensor.shape)
    if values.shape != tensor.shape:
        raise CorruptError(f"has shape {values.shape}, {tensor.shape} said", where=f"parameter {name}")
    if tensor.scale is None:
        return values
    if tensor.scale.shape not in ((), tensor.shape[:1]):
        raise _scales(name, tensor.scale)
    scale = tensor.scale if tensor.scale.ndim == 0 else tensor.scale.reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(values * scale, np.float32)


def _scales(name: str, scale: Floats) -> CorruptError:
    return CorruptError(f"has {scale.size} scales", where=f"parameter {name}")


def _spread(name: str, values: Floats, gaps: NDArray[Any], shape: tuple[int, ...]) -> Floats:
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    out = np.zeros(math.prod(shape), np.float32)
    if values.ndim != 1 or len(places) != len(values) or (len(places) and places[-1] >= out.size):
        raise CorruptError("has positions that do not fit", where=f"parameter {name}")
    out[places] = values
    return out.reshape(shape)
