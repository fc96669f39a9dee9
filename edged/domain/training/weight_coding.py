"""Weights in fewer bits, for slow lines; and how they are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import Floats
from edged.errors import CorruptError, ModelError

Weights = dict[str, Floats]
Dtype = Literal["float32", "int8"]


@dataclass(frozen=True)
class Coded:
    """The numbers of one tensor as they are sent.

    int8 values are symmetric: each is multiplied by a scale, one per row of a matrix and one for any other
    tensor.
    """

    values: NDArray[Any]  # float32 or int8
    scale: Floats | None = None  # `()` or `(rows,)`, of int8 values


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


def code(weights: Mapping[str, Floats], dtype: Dtype, exact: Collection[str] = ()) -> dict[str, Coded]:
    """Code weights or a difference in this number format; those of the names `exact` stay float32.

    Raises ModelError when a number is not finite.
    """
    return {
        name: _coded(name, value, "float32" if name in exact else dtype) for name, value in weights.items()
    }


def decode(coded: Mapping[str, Coded]) -> Weights:
    """Return the numbers again; CorruptError when scales do not fit their tensor."""
    return {name: _decoded(name, tensor) for name, tensor in coded.items()}


def _coded(name: str, value: Floats, dtype: Dtype) -> Coded:
    if not np.isfinite(value).all():
        raise ModelError("holds numbers that are not finite", where=f"parameter {name}")
    if dtype == "float32":
        return Coded(np.asarray(value, np.float32))
    axes = tuple(range(1, value.ndim)) if value.ndim > 1 else None
    scale = np.asarray(np.abs(value).max(axis=axes, initial=0.0) / 127.0, np.float32)
    divisor = np.where(scale > 0, scale, np.float32(1.0))
    divisor = divisor.reshape(-1, *[1] * (value.ndim - 1)) if axes else divisor
    return Coded(np.clip(np.rint(value / divisor), -127, 127).astype(np.int8), scale)


def _decoded(name: str, tensor: Coded) -> Floats:
    values = tensor.values.astype(np.float32)
    if tensor.scale is None:
        return values
    if tensor.scale.shape not in ((), values.shape[:1]):
        raise CorruptError(f"has {tensor.scale.size} scales", where=f"parameter {name}")
    scale = tensor.scale if tensor.scale.ndim == 0 else tensor.scale.reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(values * scale, np.float32)
