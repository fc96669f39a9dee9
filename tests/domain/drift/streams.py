"""Random streams that are the same wherever and whenever they are drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence

KINDS = ("stationary", "abrupt", "gradual")
LENGTH = 4000
CHANGE = LENGTH // 2
WIDTH = 1000


def share_changed(kind: str, at: int) -> float:
    """How much of the change has happened at reading `at`."""
    if kind == "stationary" or at < CHANGE:
        return 0.0
    return 1.0 if kind == "abrupt" else min(1.0, (at - CHANGE) / WIDTH)


def errors(kind: str, seed: int, length: int = LENGTH) -> list[int]:
    """Errors 0 and 1 whose rate goes from one random value to another."""
    rng = random.Random(f"{kind} errors {seed}")
    before, after = rng.uniform(0.01, 0.4), rng.uniform(0.1, 0.9)
    return [int(rng.random() < before + (after - before) * share_changed(kind, i)) for i in range(length)]


def values(kind: str, seed: int, length: int = LENGTH) -> list[float]:
    """Bell-shaped real values whose mean and spread change; of uniform numbers only, so exact anywhere."""
    rng = random.Random(f"{kind} values {seed}")
    mean, spread = rng.uniform(-3, 3), rng.uniform(0.5, 2)
    out = []
    for i in range(length):
        changed = share_changed(kind, i)
        bell = sum(rng.random() for _ in range(4)) - 2
        out.append(mean * changed + (1 + (spread - 1) * changed) * bell)
    return out


def stream(kind: str, seed: int) -> Sequence[float]:
    """What the parity tests feed: errors, and with odd seeds real values."""
    return values(kind, seed) if seed % 2 else errors(kind, seed)
