"""Rows divided among virtual devices."""

from __future__ import annotations

import numpy as np
import pytest

from edged.errors import ConfigError
from edged.fleet.simulation.devices import LEAST, by_key, dirichlet, own_and_kept

CLASSES = np.arange(6000) % 5


def test_each_row_belongs_to_one_device() -> None:
    for parts in (dirichlet(CLASSES, 10, 0.3, 1), by_key(["a", "b", "c"] * 100)):
        rows = np.concatenate(list(parts.values()))
        assert sorted(rows.tolist()) == list(range(len(rows)))
    assert by_key(["a", "b", "c"] * 100)["b"][:3].tolist() == [1, 4, 7]


def skew(alpha: float) -> float:
    """The share of the largest class of a device, in the mean."""
    parts = dirichlet(CLASSES, 10, alpha, 1)
    assert min(map(len, parts.values())) >= LEAST
    return float(np.mean([np.bincount(CLASSES[rows]).max() / len(rows) for rows in parts.values()]))


def test_a_small_alpha_makes_devices_unlike_each_other() -> None:
    assert skew(100.0) < 0.3
    assert skew(0.2) > 0.5
    assert dirichlet(CLASSES, 10, 0.3, 1)["d003"].tolist() == dirichlet(CLASSES, 10, 0.3, 1)["d003"].tolist()


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        dirichlet(CLASSES, 200, 1.0, 0)
    with pytest.raises(ConfigError, match="key b has 3 rows"):
        by_key(["a"] * 50 + ["b"] * 3)


def test_own_rows_and_kept_ones_are_different_and_alternate() -> None:
    rows = np.arange(1000, 1403)
    own, kept = parts = own_and_kept(rows)
    assert sorted(np.concatenate(parts).tolist()) == rows.tolist()
    assert len(own) > 3 * len(kept)
    assert all(part.min() < 1040 and part.max() > 1360 for part in parts)
