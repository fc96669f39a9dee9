"""Sums under masks that cancel out: who masks with whom, shares of secrets, whole numbers modulo 2^64.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (2017): each device
adds a mask of its own and one for each neighbour, which that one subtracts; what is needed to take masks off
is shared out among the neighbours (Shamir 1979), so that devices may fall silent. With many devices each has
`NEIGHBOURS` of them, not all (Bell et al., "Secure single-server aggregation with (poly)logarithmic
overhead", 2020). No cryptography in here.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.errors import CorruptError, RefusedError

if TYPE_CHECKING:
    Doubles = NDArray[np.float64]
    Ring = NDArray[np.uint64]

PRIME = 2**256 + 297
"""The least prime above 2^256: secrets of 32 bytes are numbers below it, shares take 33 bytes."""

SECRET_BYTES, SHARE_BYTES = 32, 33
NEIGHBOURS = 128
"""With 30 % of them silent, one of 1,000 rounds of 1,000 devices has a device too few of whose answer."""

FEWEST = 3
"""Devices of a sum: one of two knows the other's part."""

LARGEST = 2**20
"""Below it lies each number of a device: what 64 bits have room for beside that is for its fraction."""


def neighbours(names: Iterable[str], token: str, most: int = NEIGHBOURS) -> dict[str, tuple[str, ...]]:
    """With whom each device masks: those beside it on a ring drawn from `token`; all, where they are few.

    >>> sorted(neighbours(["a", "b", "c"], "00")["a"])
    ['b', 'c']
    """
    ring = sorted(names, key=lambda name: hashlib.sha256(f"{token} {name}".encode()).digest())
    count, half = len(ring), most // 2
    if count - 1 <= 2 * half:
        return {name: tuple(other for other in ring if other != name) for name in ring}
    steps = [step for step in range(-half, half + 1) if step]
    return {name: tuple(ring[(at + step) % count] for step in steps) for at, name in enumerate(ring)}


def threshold(holders: int) -> int:
    """Shares that give a secret, of so many: more than half, so that no two halves get different ones.

    >>> threshold(3), threshold(129)
    (2, 65)
    """
    return holders // 2 + 1


def places(holders: Iterable[str]) -> dict[str, int]:
    """Where the polynomial is evaluated for each holder of a share: 1, 2, ... in the order of names."""
    return {name: place for place, name in enumerate(sorted(holders), 1)}


def split_secret(secret: bytes, holders: Iterable[str]) -> dict[str, bytes]:
    """Shares of 32 bytes for each holder, of which `threshold` give them and fewer say nothing."""
    at = places(holders)
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold(len(at)) - 1)]
    coefficients.append(int.from_bytes(secret, "big"))
    found = {}
    for name, x in at.items():
        value = 0
        for coefficient in coefficients:
            value = (value * x + coefficient) % PRIME
        found[name] = value.to_bytes(SHARE_BYTES, "big")
    return found


class SecretJoiner:
    """Gives secrets from shares; for the same places the weights of the shares are computed once."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, ...], list[int]] = {}

    def join(self, shares: Mapping[int, bytes], holders: int) -> bytes:
        """The secret from shares by place, out of so many holders.

        Raises CorruptError when they are too few, or are none of one secret.
        """
        needed = threshold(holders)
        if len(shares) < needed:
            raise CorruptError(f"{len(shares)} shares of a secret, {needed} needed", where="masks")
        chosen = tuple(sorted(shares)[:needed])
        weights = self._weights.get(chosen) or _weights_at_zero(chosen)
        if len(self._weights) < 4096:
            self._weights[chosen] = weights
        pairs = zip(weights, chosen, strict=True)
        secret = sum(weight * int.from_bytes(shares[x], "big") for weight, x in pairs) % PRIME
        if secret >= 1 << 8 * SECRET_BYTES:
            raise CorruptError("shares are not of one secret", where="masks")
        return secret.to_bytes(SECRET_BYTES, "big")


def _weights_at_zero(chosen: Sequence[int]) -> list[int]:
    """What the values at these places are multiplied with to give that at 0."""
    above = math.prod(chosen)
    below = [x * math.prod(other - x for other in chosen if other != x) % PRIME for x in chosen]
    # One inverse for all: from that of their product each one's is found on the way back.
    products = list(accumulate(below, lambda a, b: a * b % PRIME))
    inverse, found = pow(products[-1], -1, PRIME), []
    for at in range(len(below) - 1, -1, -1):
        found.append(above * inverse * (products[at - 1] if at else 1) % PRIME)
        inverse = inverse * below[at] % PRIME
    return found[::-1]


def fraction_bits(devices: int) -> int:
    """Bits after the point in a sum of so many devices, one bit left free.

    >>> fraction_bits(3), fraction_bits(1000)
    (40, 32)
    """
    return 62 - (LARGEST - 1).bit_length() - (devices - 1).bit_length()


def to_ring(vector: Doubles, devices: int) -> Ring:
    """Numbers as whole ones modulo 2^64, so that the sum of as many devices' fits.

    Raises RefusedError when they are not below `LARGEST`.
    """
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest < LARGEST:
        raise RefusedError(
            f"a number of {largest:.3g} does not fit under masks, those below {LARGEST} do",
            where="masks",
            remedy="scale the inputs of the network, or lower admit.max_samples of the coordinator",
        )
    return np.rint(vector * 2.0 ** fraction_bits(devices)).astype(np.int64).view(np.uint64)


def from_ring(total: Ring, devices: int) -> Doubles:
    """The numbers of a sum again."""
    return np.asarray(total.view(np.int64) / 2.0 ** fraction_bits(devices), np.float64)


def flat(values: Mapping[str, NDArray[np.float32]], shapes: Mapping[str, tuple[int, ...]]) -> Doubles:
    """Tensors one after the other in the order of their names; those that are missing are 0."""
    parts = [values[name] if name in values else np.zeros(shapes[name]) for name in sorted(shapes)]
    return np.concatenate([part.astype(np.float64).reshape(-1) for part in parts])
